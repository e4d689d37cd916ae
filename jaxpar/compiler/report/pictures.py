"""Inline SVG: memory over the program, and one layer over time."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from math import floor, log10

from jaxpar.compiler.report.layer_schedule import LayerSchedule, Span
from jaxpar.compiler.report.memory_timeline import MemoryTimeline
from jaxpar.config.spelling import spaced
from jaxpar.units import GIB, seconds, size

WIDTH, LEFT, RIGHT = 1100, 70, 16
CLASS_COLORS = {
    "optimizer": "#8e7cc3",
    "weights": "#4a86c8",
    "gradients": "#e0a030",
    "saved_activations": "#5aa469",
    "temporaries": "#8fb8c4",
}
"""From the bottom of the picture to the top: classes that live longest are lowest."""
KIND_COLORS = {
    "matmul": "#3b6ea5",
    "attention": "#5aa469",
    "elementwise": "#9aa5b1",
    "copy": "#c9ced6",
    "wait": "#d64545",
}
_VERB_COLORS = ("#e0a030", "#8e7cc3", "#4fb3bf", "#c27ba0", "#a98a5b", "#6d8f3c", "#5b6fb5", "#b5651d")
MEMORY_HEIGHT, LANE = 320, 30


def memory_picture(timeline: MemoryTimeline, capacity: int) -> str:
    """Stacked areas of the classes over the order of the program, with the peak and what the device can hold."""
    top, bottom = 34, 26
    height = MEMORY_HEIGHT - top - bottom
    totals = [sum(timeline.classes[name][i] for name in timeline.classes) for i in range(len(timeline.places))]
    most = max(max(totals), 1)
    highest = 1.08 * (max(most, capacity) if capacity < 2.5 * most else most)
    x = lambda place: LEFT + (WIDTH - LEFT - RIGHT) * place / max(timeline.length - 1, 1)
    y = lambda count: top + height * (1 - count / highest)
    parts = [_open(MEMORY_HEIGHT, "memory")]
    for name, first, last in timeline.loops:
        parts.append(
            f'<rect class="loop" x="{x(first):.1f}" y="{top}" width="{x(last) - x(first):.1f}" height="{height}"/>'
        )
        parts.append(_text((x(first) + x(last)) / 2, top - 6, name, "middle"))
    below = [0] * len(totals)
    for name, color in CLASS_COLORS.items():
        above = [low + count for low, count in zip(below, timeline.classes[name], strict=True)]
        edge = [f"{x(p):.1f},{y(v):.1f}" for p, v in zip(timeline.places, above, strict=True)]
        back = [f"{x(p):.1f},{y(v):.1f}" for p, v in zip(timeline.places, below, strict=True)]
        parts.append(f'<polygon fill="{color}" points="{" ".join(edge + back[::-1])}"/>')
        below = above
    parts += [_tick(y(mark), size(mark).replace(".0 ", " ")) for mark in _marks(highest)]
    if capacity < highest:
        line = y(capacity)
        parts.append(f'<line class="capacity" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{line:.1f}" y2="{line:.1f}"/>')
        parts.append(_text(WIDTH - RIGHT - 4, line - 5, f"what fits: {size(capacity)}", "end", "red"))
    at = x(timeline.peak)
    parts.append(f'<line class="peak" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{top + height}"/>')
    side, shift = ("end", -5) if at > WIDTH / 2 else ("start", 5)
    parts.append(_text(at + shift, y(most) - 6, f"peak {size(most)}", side, "strong"))
    parts.append(_text(LEFT, MEMORY_HEIGHT - 8, "start of the step"))
    parts.append(_text(WIDTH - RIGHT, MEMORY_HEIGHT - 8, "end", "end"))
    parts.append(f'<line id="cursor" class="cursor" x1="0" x2="0" y1="{top}" y2="{top + height}"/></svg>')
    return "".join(parts)


def layer_picture(schedule: LayerSchedule, scale: float, colors: dict[str, str]) -> str:
    """Two lanes; `scale` is the time in seconds that fills the width, so that pictures can be compared.
    `colors` are those of transfers."""
    top, gap = 24, 8
    bottom = top + 2 * LANE + gap
    x = lambda time: LEFT + (WIDTH - LEFT - RIGHT) * time / scale
    parts = [_open(bottom + 26, "layer")]
    for lane, name in enumerate(("compute", "transfers")):
        parts.append(_text(LEFT - 8, top + lane * (LANE + gap) + LANE / 2 + 4, name, "end"))
    parts += [_span(x, span, top, KIND_COLORS[span.kind]) for span in schedule.kernels]
    parts += [_span(x, span, top, KIND_COLORS["wait"]) for span in schedule.waits]
    for span in schedule.transfers:
        parts.append(_span(x, span, top + LANE + gap, colors[span.kind]))
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom + 4}" y2="{bottom + 4}"/>')
    step = 10 ** floor(log10(scale))
    step = next(step * part for part in (0.1, 0.2, 0.5, 1, 2) if scale <= 10 * step * part)
    parts += [_text(x(step * i), bottom + 18, seconds(step * i), "middle") for i in range(int(scale / step) + 1)]
    return "".join([*parts, "</svg>"])


def collective_colors(schedules: list[LayerSchedule]) -> dict[str, str]:
    """A color for each kind of transfer."""
    kinds = sorted({span.kind for schedule in schedules for span in schedule.transfers})
    return {kind: _VERB_COLORS[i % len(_VERB_COLORS)] for i, kind in enumerate(kinds)}


def legend(colors: dict[str, str]) -> str:
    """Names beside their colors."""
    items = (f'<span><i style="background:{color}"></i>{escape(spaced(name))}</span>' for name, color in colors.items())
    return f'<p class="legend">{"".join(items)}</p>'


def _span(x: Callable[[float], float], span: Span, y: float, color: str) -> str:
    left, width = x(span.start), max(x(span.end) - x(span.start), 0.4)
    said = escape(f"{span.label} ({span.kind}), {seconds(span.end - span.start)} {span.source}")
    return (
        f'<rect class="span" x="{left:.2f}" y="{y}" width="{width:.2f}" height="{LANE}" fill="{color}">'
        f"<title>{said}</title></rect>"
    )


def _marks(highest: float) -> list[float]:
    """Round numbers of GiB (or a fraction) up to `highest`."""
    step = GIB / 1024
    while highest / step > 6:
        step *= 2
    return [step * i for i in range(int(highest / step) + 1)]


def _tick(y: float, text: str) -> str:
    return f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>' + _text(
        LEFT - 8, y + 4, text, "end"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _open(height: int, name: str) -> str:
    return f'<svg class="{name}" viewBox="0 0 {WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'
