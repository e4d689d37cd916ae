"""A page about a search: its plans, their schedules, and all layouts that it has timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jaxpar.config import UserError
from jaxpar.pages.palette import series
from jaxpar.pages.render import Table, page
from jaxpar.pipeline.drawing.picture import inline_picture, style
from jaxpar.planner.report import words
from jaxpar.planner.report.columns import INTERVAL, NUMBERS, columns
from jaxpar.planner.report.scatter import scatter
from jaxpar.planner.report.schedules import simulated
from jaxpar.planner.search.candidate import Candidate, Planned
from jaxpar.planner.search.heterogeneous import StepTimer
from jaxpar.planner.step_time.interval import Spread
from jaxpar.units import percent, plural, seconds, size

COLORINGS = ("schedule", "tensor", "pipe", "context", "data", "zero", "microbatch", "context_strategy", "remat", "host")
FIRST = ("", "mesh", "step", INTERVAL, "tokens/s/GPU", "MFU", "memory")
"""The first columns of the table."""
MOST_ROWS = 300
"""Most layouts in the table: the fastest."""
MOST_DRAWN = 5
"""Most plans whose schedules are drawn."""


def write_page(path: Path, plans: Sequence[Planned], evaluated: Sequence[Candidate], timer: StepTimer) -> None:
    """Write the page, which needs no network. Raises `UserError` where that cannot be."""
    try:
        path.write_text(html_page(plans, evaluated, timer), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {path}: cannot be written ({error.strerror})") from None


def html_page(plans: Sequence[Planned], evaluated: Sequence[Candidate], timer: StepTimer) -> str:
    """The page.

    Args:
        plans: best first.
        evaluated: every layout that was timed.
        timer: of the search.
    """
    best, cluster = plans[0], plans[0].cluster
    planned = {one.candidate.layout for one in plans}
    others = sorted((one for one in evaluated if one.layout not in planned), key=lambda one: one.seconds)
    layouts = [*(one.candidate for one in plans), *others]
    properties = {name: [_property(one, name) for one in layouts] for name in COLORINGS}
    drawn = [(place, one, found) for place, one in enumerate(plans[:MOST_DRAWN], 1) if (found := simulated(one, timer))]
    data = best.config.data
    return page(
        "planner/report/page.html",
        f"{best.config.run.name} on {cluster.name}",
        styles=["planner/report/page.css"],
        scripts=["pages/table.js", "planner/report/page.js"],
        data={"layouts": {"properties": properties}},
        colors=series(max(len(set(values)) for values in properties.values())),
        schedule_style=style(found.schedule.virtual_stages for _, _, found in drawn),
        cluster=cluster.describe(),
        batch=f"{plural(data.batch_size, 'row')} of {data.sequence_length:,} tokens",
        cards=_cards(best),
        certainty="" if best.spread is None else words.certainty(plans, best.spread),
        marked=" ".join(filter(None, (words.without_evidence(plans), *_experts(best)))),
        table=_table(layouts, best.spread, len(plans), data.batch_size),
        left_out=max(0, len(layouts) - MOST_ROWS),
        colorings=[name for name in COLORINGS if len(set(properties[name])) > 1] or COLORINGS[:1],
        count=len(layouts),
        scatter=scatter(layouts, [_sentence(one) for one in layouts], len(plans), best.usable),
        schedules=[
            (
                f"{place}: {words.axes(one.candidate.layout)}",
                one.plan.microbatches,
                found.schedule.microbatches,
                inline_picture(found, f"bubble-{place}", seconds),
            )
            for place, one, found in drawn
        ],
        time=_bars(best.candidate.time.breakdown, seconds, best.candidate.seconds, words.MEANINGS),
        memory=_bars(best.candidate.memory._asdict(), size, best.usable, {"host": "pinned, on the host"}),
    )


def _experts(best: Planned) -> list[str]:
    return [f"Experts of 1: {line}." for line in words.exchanges(best.plan, best.config.parallel)]


def _cards(best: Planned) -> list[tuple[str, str]]:
    found = best.candidate
    between = "predicted"
    if best.spread is not None:
        least, most = best.spread.interval(found.seconds)
        between = f"predicted: {seconds(least)} to {seconds(most)}"
    return [
        (seconds(found.seconds), f"a step, {between}"),
        (f"{found.time.tokens_per_s_per_gpu:,.0f}", "tokens/s/GPU"),
        (f"{100 * found.time.mfu:.1f}%", "MFU"),
        (size(found.memory.device), f"of the {size(best.usable)} of a GPU that may be planned for"),
    ]


def _table(layouts: Sequence[Candidate], spread: Spread | None, plans: int, batch: int) -> Table:
    shown = enumerate(layouts[:MOST_ROWS], 1)
    rows = [columns(one, place if place <= plans else None, batch, spread) for place, one in shown]
    first = [head for head in FIRST if head in rows[0]]
    heads = [*first, *(head for head in rows[0] if head not in first)]
    numbers = [index for index, head in enumerate(heads) if head in NUMBERS]
    return Table(heads, [[row[head] for head in heads] for row in rows], numbers, "sortable")


def _bars(
    parts: Mapping[str, float], unit: Callable[[float], str], whole: float, meanings: Mapping[str, str]
) -> list[tuple[str, float, str, str]]:
    """Parts of the time or of the memory as bars, the longest first."""
    known = sorted(((name, value) for name, value in parts.items() if value > 0), key=lambda item: -item[1])
    most = max((value for _, value in known), default=1.0)
    return [
        (f"{name.replace('_', ' ')}: {meanings[name]}" if name in meanings else name.replace("_", " "), value / most,
         f"{unit(value)}  {percent(value, whole)}", "part")
        for name, value in known
    ]  # fmt: skip


def _property(candidate: Candidate, name: str) -> str:
    """What a layout is colored by."""
    layout = candidate.layout
    match name:
        case "schedule":
            return words.schedule(layout)
        case "remat":
            return layout.remat if isinstance(layout.remat, str) else "mixture"
        case "host":
            return words.host(layout)
    return str(getattr(layout, name))


def _sentence(candidate: Candidate) -> str:
    layout = candidate.layout
    return (
        f"{words.axes(layout)}; {plural(layout.microbatch, 'row')}; {words.schedule(layout)}; ZeRO-{layout.zero}; "
        f"{layout.context_strategy}; remat {words.remat(layout)}; host {words.host(layout)}: "
        f"{seconds(candidate.seconds)}, MFU {percent(candidate.time.mfu)}, {size(candidate.memory.device)}"
    )
