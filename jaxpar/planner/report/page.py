"""A page about a search: its plans, and all layouts that it has timed, by time and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jaxpar.config import UserError
from jaxpar.config.spelling import spaced
from jaxpar.pages.axes import ticks
from jaxpar.pages.palette import SERIES
from jaxpar.pages.render import Table, page
from jaxpar.pages.units import GIB, percent, plural, seconds, size
from jaxpar.planner.report import words
from jaxpar.planner.search.candidate import Candidate, Planned

FIRST = ("", "mesh", "step", words.INTERVAL, "tokens/s/GPU", "MFU", "memory")
"""The first columns of the table."""
MOST_ROWS = 300
"""Most layouts in the table: the fastest."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1000, 460, 62, 986, 26, 416
"""Sizes of the picture and its axes, in pixels."""
SLOWEST, NARROWEST = 3.0, 1.25
"""Times the best: slower layouts are not drawn; and the least that the time axis shows."""


def write_page(path: Path, plans: Sequence[Planned], evaluated: Sequence[Candidate]) -> None:
    """Write the page, which needs no network. Raises `UserError` where that cannot be."""
    try:
        path.write_text(html_page(plans, evaluated), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {path}: cannot be written ({error.strerror})") from None


def html_page(plans: Sequence[Planned], evaluated: Sequence[Candidate]) -> str:
    """The page.

    Args:
        plans: best first.
        evaluated: every layout that was timed.
    """
    best, cluster = plans[0], plans[0].cluster
    planned = {one.candidate.layout for one in plans}
    others = sorted((one for one in evaluated if one.layout not in planned), key=lambda one: one.seconds)
    layouts, data = [*(one.candidate for one in plans), *others], best.config.data
    experts = [f"Experts of 1: {line}." for line in words.exchanges(best.plan, best.config.parallel)]
    interval = "" if best.spread is None else f": {words.between(best.spread, best.candidate.seconds)}"
    return page(
        "planner/report/page.html",
        f"{best.config.run.name} on {cluster.name}",
        styles=["planner/report/page.css"],
        scripts=["pages/table.js"],
        color=SERIES[0],
        cluster=cluster.describe(),
        batch=f"{plural(data.batch_size, 'row')} of {data.sequence_length:,} tokens",
        cards=[
            (seconds(best.candidate.seconds), f"a step, predicted{interval}"),
            (f"{best.candidate.time.tokens_per_s_per_gpu:,.0f}", "tokens/s/GPU"),
            (percent(best.candidate.time.mfu), "MFU"),
            (size(best.candidate.memory.device), f"of the {size(best.usable)} of a GPU that may be planned for"),
        ],
        certainty="" if best.spread is None else words.certainty(plans, best.spread),
        marked=" ".join(filter(None, (words.without_evidence(plans), *experts))),
        table=_table(layouts, best, len(plans)),
        left_out=max(0, len(layouts) - MOST_ROWS),
        count=len(layouts),
        scatter=scatter(layouts, len(plans), best.usable),
        time=_bars(
            best.candidate.time.breakdown,
            seconds,
            best.candidate.seconds,
            {name: what for name, (what, _) in words.PARTS.items()},
        ),
        memory=_bars(best.candidate.memory._asdict(), size, best.usable, {"host": words.PINNED}),
    )


def _table(layouts: Sequence[Candidate], best: Planned, plans: int) -> Table:
    batch = best.config.data.batch_size
    shown = enumerate(layouts[:MOST_ROWS], 1)
    rows = [words.columns(one, index if index <= plans else None, batch, best.spread) for index, one in shown]
    first = [head for head in FIRST if head in rows[0]]
    heads = [*first, *(head for head in rows[0] if head not in first)]
    numbers = [index for index, head in enumerate(heads) if head not in words.LEFT]
    return Table(heads, [[row[head] for head in heads] for row in rows], numbers, "sortable")


def _bars(
    parts: Mapping[str, float], unit: Callable[[float], str], full: float, meanings: Mapping[str, str]
) -> list[tuple[str, float, str, str]]:
    """Parts of the time or of the memory as bars, the longest first."""
    known = sorted(((name, value) for name, value in parts.items() if value > 0), key=lambda item: -item[1])
    most = max((value for _, value in known), default=1.0)
    named = lambda name: ": ".join((spaced(name), *filter(None, [meanings.get(name)])))
    return [(named(name), value / most, f"{unit(value)}  {percent(value, full)}", "part") for name, value in known]


def scatter(layouts: Sequence[Candidate], plans: int, usable: int) -> dict[str, object]:
    """The picture of time against memory, in pixels, with the Pareto frontier.

    Args:
        layouts: the plans, best first, then others.
        plans: how many of them are plans.
        usable: bytes of a device that may be planned for.
    """
    best = min(one.seconds for one in layouts)
    shown = [one for one in layouts if one.seconds <= SLOWEST * best]
    low, high = 0.98 * best, 1.02 * max(NARROWEST * best, *(one.seconds for one in shown))
    sizes = [one.memory.device / GIB for one in shown]
    least, most = 0.9 * min(sizes), 1.06 * max(usable / GIB, *sizes)
    x = lambda time: round(LEFT + (RIGHT - LEFT) * (time - low) / (high - low), 1)
    y = lambda size: round(BOTTOM - (BOTTOM - TOP) * (size / GIB - least) / (most - least), 1)
    points = [
        (x(one.seconds), y(one.memory.device), index if index <= plans else None, _sentence(one))
        for index, one in enumerate(shown, 1)
    ]
    start, *steps = [(x(one.seconds), y(one.memory.device)) for one in frontier(shown)]
    return {
        "width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM,
        "x_ticks": [(x(time), seconds(time)) for time in ticks(low, high, 8)],
        "y_ticks": [(y(GIB * size), f"{size:g}") for size in ticks(least, most, 6)],
        "usable": y(usable),
        "frontier": f"M{start[0]} {start[1]}" + "".join(f"H{x}V{y}" for x, y in steps),
        "points": points[::-1],  # plans on top
    }  # fmt: skip


def frontier(layouts: Sequence[Candidate]) -> list[Candidate]:
    """The layouts for which no other is as fast and as small, by rising time."""
    found: list[Candidate] = []
    for one in sorted(layouts, key=lambda one: (one.seconds, one.memory.device)):
        if not found or one.memory.device < found[-1].memory.device:
            found.append(one)
    return found


def _sentence(candidate: Candidate) -> str:
    layout = candidate.layout
    return (
        f"{words.in_one_line(layout)}; {plural(layout.microbatch, 'row')}; {layout.context_strategy}: "
        f"{seconds(candidate.seconds)}, MFU {percent(candidate.time.mfu)}, {size(candidate.memory.device)}"
    )
