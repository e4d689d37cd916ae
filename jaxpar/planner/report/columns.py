"""The columns of tables of layouts, on the terminal and on pages."""

from __future__ import annotations

from jaxpar.pages.render import Cell
from jaxpar.planner.report import words
from jaxpar.planner.search.avoid import never_measured
from jaxpar.planner.search.candidate import Candidate
from jaxpar.planner.step_time.interval import Spread
from jaxpar.units import percent, seconds, size

INTERVAL = "80%"
"""The column of the interval that holds four of five measured steps."""
NUMBERS = ("", "rows", "µb", "ZeRO", "step", INTERVAL, "tokens/s/GPU", "MFU", "memory")
"""Columns that are aligned right."""


def columns(found: Candidate, place: int | None, batch: int, spread: Spread | None) -> dict[str, Cell]:
    """The cells of a layout by the heads of their columns.

    Args:
        found: the layout.
        place: among the plans; None for others.
        batch: rows of a step.
        spread: of measured steps around predicted ones; None leaves the interval out.
    """
    layout, time = found.layout, found.time
    number = lambda value: Cell(str(value), order=value)
    least, most = (0.0, 0.0) if spread is None else spread.interval(found.seconds)
    between = {} if spread is None else {INTERVAL: Cell(f"{seconds(least)} to {seconds(most)}", order=least)}
    return {
        "": Cell("", order=None) if place is None else number(place),
        "mesh": Cell(words.axes(layout) + (f" {words.MARK}" if never_measured(layout) else "")),
        "rows": number(layout.microbatch),
        "µb": number(layout.microbatches(batch)),
        "schedule": Cell(words.schedule(layout)),
        "ZeRO": number(layout.zero),
        "context": Cell(layout.context_strategy if layout.context > 1 else "-"),
        "remat": Cell(words.remat(layout)),
        "host": Cell(words.host(layout)),
        "step": Cell(seconds(found.seconds), order=found.seconds),
        **between,
        "tokens/s/GPU": Cell(f"{time.tokens_per_s_per_gpu:,.0f}", order=time.tokens_per_s_per_gpu),
        "MFU": Cell(percent(time.mfu), order=time.mfu),
        "memory": Cell(size(found.memory.device), order=found.memory.device),
    }
