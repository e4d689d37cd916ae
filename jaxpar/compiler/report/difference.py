"""Two reports side by side: what changes from one configuration to the other."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from jaxpar.compiler.report.record import Collective, Report
from jaxpar.compiler.report.text import lines, print_verdict
from jaxpar.config.spelling import spaced
from jaxpar.units import operations, percent, seconds, size

type Row = tuple[str, ...]


def print_difference(before: Report, after: Report, console: Console) -> None:
    """Print memory by class, transfers, work and waiting of both reports; of transfers only those that differ."""
    for report in (before, after):
        print_verdict(report, console)
    columns = (before.config, True), (after.config, True), ("change", True)
    for title, rows in (
        ("Memory per GPU", memory_rows(before, after)),
        ("Sent per GPU and step", traffic_rows(before, after)),
        ("Work and waiting per GPU and step", work_rows(before, after)),
    ):
        console.print()
        if rows:
            console.print(lines(rows, title, ("", False), *columns))
        else:
            console.print(Text(f"{title}: the same"))


def memory_rows(before: Report, after: Report) -> list[Row]:
    """One row per class, and the peak."""
    rows = [_row(spaced(name), before.classes[name], after.classes[name], size) for name in before.classes]
    return [*rows, _row("peak", before.peak_bytes, after.peak_bytes, size)]


def traffic_rows(before: Report, after: Report) -> list[Row]:
    """One row per kind of transfer whose bytes, count or exposed time differ."""
    first, second = _by_name(before), _by_name(after)
    rows = []
    for name in dict.fromkeys([*first, *second]):
        old, new = first.get(name), second.get(name)
        pairs = [(c.bytes, c.count, c.exposed_s) if c else (0.0, 0.0, 0.0) for c in (old, new)]
        if pairs[0] == pairs[1]:
            continue
        rows.append(_row(name, pairs[0][0], pairs[1][0], size))
        rows.append(_row("  times", pairs[0][1], pairs[1][1], lambda count: f"{count:,.0f}"))
        rows.append(_row("  exposed", pairs[0][2], pairs[1][2], seconds))
    return rows


def work_rows(before: Report, after: Report) -> list[Row]:
    """FLOPs, recomputation, times, exposed time."""
    return [
        _row("matrix products", before.flops, after.flops, operations),
        _row("of it recomputed", before.recompute_flops, after.recompute_flops, operations),
        _row("compute", before.compute_seconds, after.compute_seconds, seconds),
        _row("exposed", before.exposed_seconds, after.exposed_seconds, seconds),
        _row("exposed share", before.exposed_fraction, after.exposed_fraction, percent),
    ]


def _by_name(report: Report) -> dict[str, Collective]:
    link = lambda row: " between nodes" if row.crosses_nodes else ""
    return {f"{row.axis} {row.collective} ({row.kind}, {row.dtype}){link(row)}": row for row in report.collectives}


def _row(name: str, old: float, new: float, show: Callable[[float], str]) -> Row:
    if old == new:
        return name, show(old), show(new), "="
    change = new - old
    sign = "+" if change > 0 else "-"
    relative = f" ({sign}{percent(abs(change), abs(old), digits=0)})" if old else ""
    return name, show(old), show(new), f"{sign}{show(abs(change))}{relative}"
