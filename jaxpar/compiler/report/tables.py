"""A report in words and tables, for the page and on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from jaxpar.compiler.report.record import Report
from jaxpar.compiler.report.screen import table
from jaxpar.config.spelling import spaced
from jaxpar.pages.render import Cell, Table
from jaxpar.pages.units import operations, percent, seconds, size

BAR = 36
"""Characters of a bar of the length of the peak."""
PEAKS = {"bfloat16": "bfloat16", "float16": "float16", "float8": "FP8"}
"""Names of the arithmetic peaks of a GPU."""
type Row = tuple[str, ...]


def mesh_words(axes: Mapping[str, int]) -> str:
    """The axes with several ranks."""
    return ", ".join(f"{axis} {size}" for axis, size in axes.items() if size > 1) or "one device"


def verdict(report: Report) -> str:
    """Returns one sentence: whether the step fits in the device's memory."""
    usable = size(report.device_bytes - report.reserve_bytes)
    there = f"{usable} ({size(report.device_bytes)} less {size(report.reserve_bytes)} for CUDA and NCCL)"
    if report.fits:
        return f"It fits: {size(report.allocated_bytes)} of {there}, {size(report.margin_bytes)} to spare."
    too_much = f"{size(report.allocated_bytes)} of {there}, {size(-report.margin_bytes)} too much"
    return f"It does NOT fit: {too_much}{f'; {report.suggestion}' if report.suggestion else ''}."


def waiting(report: Report) -> str:
    """The time of a step, and its parts."""
    lost = f"{seconds(report.exposed_seconds + report.slowed_seconds)} ({percent(report.exposed_fraction)})"
    shares = " and ".join(f"{percent(share)} of the {PEAKS[kind]} peak" for kind, share in report.utilisation.items())
    used = f" Its model FLOPs utilisation would be {shares}." if shares else ""
    return (
        f"At the fitted speeds of the GPU and its links, a step takes {seconds(report.step_seconds)}: "
        f"{seconds(report.compute_seconds)} of compute, and {lost} for transfers: {seconds(report.exposed_seconds)} "
        f"waiting, and {seconds(report.slowed_seconds)} that compute beside them takes longer.{used}"
    )


def tables(report: Report) -> dict[str, Table]:
    """The tables by title."""
    hot = 0.02 * report.step_seconds
    transfers = [
        (row.axis, row.collective, row.dtype,
         "host" if row.axis == "host" else "between" if row.crosses_nodes else "in node", f"{row.count:,.0f}",
         size(row.bytes), seconds(row.seconds), Cell(seconds(row.exposed_s), hot=row.exposed_s > hot), row.kind)
        for row in report.collectives
    ]  # fmt: skip
    waits = [
        (row.collectives, row.source, f"{row.count:,.0f}", seconds(row.seconds),
         "synchronous" if row.synchronous else seconds(row.enclosed_s), seconds(row.exposed_s))
        for row in report.exposures
    ]  # fmt: skip
    buffers = [(size(b.bytes), spaced(b.memory_class), b.shape, b.source or b.name) for b in report.largest_buffers]
    return {
        "Memory per GPU at the peak": Table(("class", "bytes", "share", ""), _memory(report), (1, 2)),
        "Transfers per GPU and step": Table(
            ("axis", "collective", "dtype", "link", "times", "sent", "needs", "exposed", "as"), transfers, (4, 5, 6, 7)
        ),
        "Waited for longest": Table(
            ("collective", "asked for by", "times", "each needs", "compute beside", "each exposed"), waits, (2, 3, 4, 5)
        ),
        "Work per GPU and step": Table(("kind", "matrix products", "time"), _work(report), (1, 2)),
        "Largest buffers at the peak": Table(("bytes", "class", "shape", "made by"), buffers, (0,)),
    }


def _memory(report: Report) -> list[Row]:
    rows = []
    for name, count in report.classes.items():
        if name != "host":
            bar = "█" * round(BAR * count / report.peak_bytes) or ("▏" if count else "")
            rows.append((spaced(name), size(count), percent(count, report.peak_bytes), bar))
    return [*rows, ("peak", size(report.peak_bytes), "", ""), ("host (pinned)", size(report.host_bytes), "", "")]


def _work(report: Report) -> list[Row]:
    rows: list[Row] = []
    for kind, time in sorted(report.seconds_by_kind.items(), key=lambda item: -item[1]):
        flops = report.flops_by_kind.get(kind, 0.0)
        rows.append((kind, operations(flops) if flops else "", seconds(time)))
    share = lambda flops: f"{operations(flops)} ({percent(flops, report.flops)})"
    rows += [
        ("all", operations(report.flops), seconds(report.compute_seconds)),
        ("of it recomputed", share(report.recompute_flops), ""),
        ("longer beside transfers", "", seconds(report.slowed_seconds)),
    ]
    return rows + ([("of it in FP8, at its own rate", share(report.float8_flops), "")] if report.float8_flops else [])


def print_report(report: Report, console: Console) -> None:
    """Print whether it fits, then memory, traffic, work, and the largest buffers."""
    where = f" on {report.cluster}: {report.devices} x {report.gpu}, mesh {mesh_words(report.axes)}"
    console.print(Text.assemble((report.config, "bold"), where), soft_wrap=True)
    console.print(Text(verdict(report), "bold green" if report.fits else "bold red"), soft_wrap=True)
    for title, shown in tables(report).items():
        _print_table(title, shown, console)
    console.print()
    console.print(Text(waiting(report), "bold"), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"Note: {note}", "yellow"), soft_wrap=True)
    last = f"Compiled in {seconds(report.compile_seconds)}. Read from the program, not measured."
    console.print(Text(last, "dim"), soft_wrap=True)


def _print_table(title: str, shown: Table, console: Console) -> None:
    """A table; one without rows is the word none."""
    console.print()
    if not shown.rows:
        console.print(Text(f"{title}: none"))
        return
    made = table(shown.heads, [head for index, head in enumerate(shown.heads) if index not in shown.numbers], title)
    for row in shown.rows:
        made.add_row(*(Text(cell, "red" if isinstance(cell, Cell) and cell.hot else "") for cell in row))
    console.print(made)
