"""A page with all layouts that a search has timed: time against memory, coloured by a chosen property."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from jaxpar.config import UserError
from jaxpar.observe.html import POLICY
from jaxpar.planner.report import words
from jaxpar.planner.search.candidate import Candidate, Planned
from jaxpar.units import GIB, percent, seconds, size

COLORINGS = ("schedule", "tensor", "pipe", "context", "data", "zero", "microbatch", "context_strategy", "remat", "host")

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">%(policy)s<title>%(title)s</title>
<style>body{font:14px/1.5 system-ui,sans-serif;margin:1.5em auto;padding:0 1em;max-width:1000px;
color:#1d2530}svg{width:100%%;
border:1px solid #cfd6dd;background:#fff}select{font:inherit}circle{cursor:pointer}#tip{min-height:3.2em;
background:#f3f5f7;padding:.5em .8em;margin:.6em 0}.key{display:inline-block;margin-right:1em}.dot{display:inline-block;
width:.8em;height:.8em;border-radius:50%%;margin-right:.3em}</style>
<h1>%(title)s</h1>
<p>%(count)s layouts that the search has timed. Colour by <select id="by">%(options)s</select></p>
<div id="tip">Point at a layout.</div><svg id="plot" viewBox="0 0 960 520" role="img" aria-label="memory against time">
</svg><p id="keys"></p>
<script>
const layouts=%(data)s,usable=%(usable)s,svg=document.getElementById('plot'),by=document.getElementById('by');
const hues=['#2f6db3','#c8452d','#3a8f5c','#8a5bb5','#c98a1b','#2aa1a8','#b5477f','#66707c','#7a9a2e','#274060'];
const xs=layouts.map(l=>l.seconds),ys=layouts.map(l=>l.gib),x0=Math.min(...xs),x1=Math.min(Math.max(...xs),3*x0)*1.02;
const y1=Math.max(usable,...ys)*1.05,X=s=>60+880*(Math.min(s,x1)-x0*.98)/(x1-x0*.98||1),Y=g=>480-460*g/y1;
function make(n,a,t){const e=document.createElementNS('http://www.w3.org/2000/svg',n);for(const k in a)
e.setAttribute(k,a[k]);if(t!==undefined)e.textContent=t;svg.appendChild(e);return e}
function draw(){svg.replaceChildren();const names=[...new Set(layouts.map(l=>String(l[by.value])))].sort(
(a,b)=>a-b||a.localeCompare(b)),hue=n=>hues[names.indexOf(String(n))%%hues.length];
for(let i=0;i<=5;i++){const s=x0+(x1-x0)*i/5,g=y1*i/5;make('line',{x1:60,x2:940,y1:Y(g),y2:Y(g),stroke:'#e6eaee'});
make('text',{x:54,y:Y(g)+4,'text-anchor':'end','font-size':12},g.toFixed(0));
make('text',{x:X(s),y:498,'text-anchor':'middle','font-size':12},s.toPrecision(3))}
make('text',{x:500,y:516,'text-anchor':'middle','font-size':13},'seconds of a step');
make('text',{x:62,y:16,'font-size':13},'GiB of a GPU');
make('line',{x1:60,x2:940,y1:Y(usable),y2:Y(usable),stroke:'#c8452d','stroke-dasharray':'5 4'});
layouts.forEach((l,i)=>{const c=make('circle',{cx:X(l.seconds),cy:Y(l.gib),r:i==0?8:4,fill:hue(l[by.value]),
'fill-opacity':.75,stroke:i==0?'#000':'none'});c.addEventListener('mouseenter',()=>{
document.getElementById('tip').textContent=l.words});});
document.getElementById('keys').replaceChildren(...names.slice(0,20).map(n=>{const k=document.createElement('span'),
d=document.createElement('span');k.className='key';d.className='dot';d.style.background=hue(n);k.append(d,n);
return k}))}
by.addEventListener('change',draw);draw();
</script></html>
"""


def write_page(path: Path, plans: Sequence[Planned], met: Sequence[Candidate], name: str, cluster: str) -> None:
    """Write the page, which needs no network. Raises `UserError` where that cannot be."""
    best = plans[0].candidate
    others = sorted((one for one in met if one.layout != best.layout), key=lambda one: one.seconds)
    layouts = [_described(one) for one in (best, *others)]
    text = PAGE % {
        "policy": POLICY,
        "title": escape(f"{name} on {cluster}"),
        "count": f"{len(layouts):,}",
        "options": "".join(f"<option>{escape(option)}</option>" for option in COLORINGS),
        "data": json.dumps(layouts).replace("<", "\\u003c"),
        "usable": plans[0].usable / GIB,
    }
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--html {path}: cannot be written ({error.strerror})") from None


def _described(candidate: Candidate) -> dict[str, object]:
    layout = candidate.layout
    own = {name: getattr(layout, name) for name in COLORINGS if name not in ("remat", "host", "schedule")}
    remat, host, schedule = words.remat(layout), words.host(layout), words.schedule(layout)
    kept = remat if isinstance(layout.remat, str) else "mixture"
    said = (
        f"{words.axes(layout)}; {layout.microbatch} rows; {schedule}; ZeRO-{layout.zero}; {layout.context_strategy}; "
        f"remat {remat}; host {host}: {seconds(candidate.seconds)}, MFU {percent(candidate.time.mfu)}, "
        f"{size(candidate.memory.device)}"
    )
    return {
        **own,
        "schedule": schedule,
        "remat": kept,
        "host": host,
        "seconds": candidate.seconds,
        "gib": candidate.memory.device / GIB,
        "words": said,
    }
