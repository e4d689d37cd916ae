"""The report on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxpar.compiler.report.record import Report
from jaxpar.config.spelling import spaced
from jaxpar.units import operations, percent, plural, seconds, size

BAR = 36
ALL_COLUMNS = 100
"""Columns of a terminal below which XLA's name of a collective is left out."""
COLORS = {
    "weights": "blue",
    "optimizer": "magenta",
    "gradients": "yellow",
    "saved_activations": "green",
    "temporaries": "cyan",
    "host": "white",
}

PEAKS = {"bfloat16": "bfloat16", "float16": "float16", "float8": "FP8"}
"""Names of peaks."""
COPIES = 10
"""Copies on the device that the screen lists."""


def print_report(report: Report, console: Console) -> None:
    """Print whether it fits, then memory, traffic, work, and the largest buffers."""
    print_verdict(report, console)
    for table in (
        _memory(report),
        _collectives(report, narrow=console.width < ALL_COLUMNS),
        _exposures(report),
        _work(report),
        _copies(report),
        _buffers(report),
    ):
        console.print()
        console.print(table)
    console.print()
    console.print(_waiting(report), soft_wrap=True)
    if report.utilisation:
        console.print(_utilisation(report), soft_wrap=True)
    for note in warnings(report):
        console.print(Text(f"Note: {note}", "yellow"), soft_wrap=True)
    console.print(
        Text(f"Compiled in {seconds(report.compile_seconds)}. Read from the program, not measured.", "dim"),
        soft_wrap=True,
    )


def print_verdict(report: Report, console: Console) -> None:
    """Configuration, cluster, and whether it fits."""
    mesh = ", ".join(f"{axis} {size}" for axis, size in report.axes.items() if size > 1) or "one device"
    console.print(
        Text.assemble((report.config, "bold"), f" on {report.cluster}: {report.devices} x {report.gpu}, mesh {mesh}"),
        soft_wrap=True,
    )
    console.print(Text(verdict(report), "bold green" if report.fits else "bold red"), soft_wrap=True)


def verdict(report: Report) -> str:
    """One sentence."""
    usable = size(report.device_bytes - report.reserve_bytes)
    there = f"{usable} ({size(report.device_bytes)} less {size(report.reserve_bytes)} for CUDA and NCCL)"
    if report.fits:
        return f"It fits: {size(report.allocated_bytes)} of {there}, {size(report.margin_bytes)} to spare."
    too_much = f"{size(report.allocated_bytes)} of {there}, {size(-report.margin_bytes)} too much"
    return f"It does NOT fit: {too_much}{f'; {report.way_out}' if report.way_out else ''}."


def warnings(report: Report) -> list[str]:
    """Caveats of the numbers."""
    found = list(report.notes)
    if report.branches:
        found.append(
            f"{plural(report.branches, 'choice')} at run time, such as attention's blocks that a mask empties; "
            "every branch is counted each time, so work in them is an upper bound"
        )
    if report.compiler_recomputes:
        found.append(
            f"memory was short, so XLA itself runs {report.compiler_recomputes} kernels and transfers a second "
            "time and overlaps less; traffic and work include that"
        )
    return found


def _table(title: str, *columns: tuple[str, bool]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
    )
    for name, number in columns:
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    return table


def _memory(report: Report) -> Table:
    table = _table("Memory per GPU at the peak", ("class", False), ("bytes", True), ("share", True), ("", False))
    for name, count in report.classes.items():
        if name == "host":
            continue
        filled = round(BAR * count / report.peak_bytes)
        bar = Text("█" * filled or ("▏" if count else ""), COLORS[name])
        table.add_row(spaced(name), size(count), percent(count, report.peak_bytes), bar)
    table.add_section()
    table.add_row("peak", size(report.peak_bytes), "", "")
    table.add_row("host (pinned)", size(report.host_bytes), "", "")
    for rank in report.pipe_ranks if len(report.pipe_ranks) > 1 else ():
        table.add_row(f"pipe rank {rank.rank}", size(rank.peak_bytes), "", "")
    return table


def _collectives(report: Report, narrow: bool) -> Table:
    names = ("axis", False), ("collective", False), ("dtype", False), ("link", False)
    numbers = ("times", True), ("sent", True), ("needs", True), ("exposed", True)
    table = _table("Transfers per GPU and step", *names, *numbers, *(() if narrow else (("as", False),)))
    for row in report.collectives:
        link = "host" if row.axis == "host" else "between" if row.crosses_nodes else "in node"
        table.add_row(
            row.axis,
            row.collective,
            row.dtype,
            link,
            f"{row.count:,.0f}",
            size(row.bytes),
            seconds(row.seconds),
            Text(seconds(row.exposed_s), "red" if row.exposed_s > 0.02 * report.step_seconds else ""),
            *(() if narrow else (row.kind,)),
        )
    if not report.collectives:
        table.add_row("none")
    return table


def _exposures(report: Report) -> Table:
    names = ("collective", False), ("asked for by", False)
    numbers = ("times", True), ("each needs", True), ("compute beside", True), ("each exposed", True)
    table = _table("Waited for longest", *names, *numbers)
    for row in report.exposures:
        beside = "synchronous" if row.synchronous else seconds(row.enclosed_s)
        times = f"{row.count:,.0f}"
        table.add_row(row.collectives, row.source, times, seconds(row.needs_s), beside, seconds(row.exposed_s))
    if not report.exposures:
        table.add_row("nothing")
    return table


def _work(report: Report) -> Table:
    table = _table("Work per GPU and step", ("kind", False), ("matrix products", True), ("time", True))
    for kind in sorted(report.seconds_by_kind, key=lambda kind: -report.seconds_by_kind[kind]):
        flops = report.flops_by_kind.get(kind, 0.0)
        table.add_row(kind, operations(flops) if flops else "", seconds(report.seconds_by_kind[kind]))
    table.add_section()
    table.add_row("all", operations(report.flops), seconds(report.compute_seconds))
    recomputed = f"{operations(report.recompute_flops)} ({percent(report.recompute_flops, report.flops)})"
    table.add_row("of it recomputed", recomputed, "")
    if report.float8_flops:
        share = percent(report.float8_flops, report.flops)
        table.add_row("of it in FP8, at its own rate", f"{operations(report.float8_flops)} ({share})", "")
    return table


def _copies(report: Report) -> Table:
    numbers = ("times", True), ("each", True), ("step", True)
    table = _table("Longest copies on the device", ("shape", False), ("asked for by", False), *numbers)
    shown, others = report.copies[:COPIES], report.copies[COPIES:]
    for copy in shown:
        whole = seconds(copy.seconds * copy.count)
        table.add_row(copy.shape, copy.source or copy.name, f"{copy.count:,.0f}", seconds(copy.seconds), whole)
    if others:
        rest = seconds(sum(copy.seconds * copy.count for copy in others))
        table.add_row(f"{len(others)} more", "listed by --json and --out FILE.html", "", "", rest)
    if not report.copies:
        table.add_row("none")
    return table


def _buffers(report: Report) -> Table:
    columns = ("bytes", True), ("class", False), ("shape", False), ("made by", False)
    table = _table("Largest buffers at the peak", *columns)
    for buffer in report.largest_buffers:
        made_by = buffer.source or buffer.name
        table.add_row(size(buffer.bytes), spaced(buffer.memory_class), buffer.shape, made_by)
    return table


def _waiting(report: Report) -> Text:
    exposed = f"{seconds(report.exposed_seconds)} ({percent(report.exposed_fraction)})"
    return Text.assemble(
        "At the fitted speeds of the GPU and its links, a step takes ",
        (seconds(report.step_seconds), "bold"),
        f": {seconds(report.compute_seconds)} of compute, and ",
        (exposed, "bold"),
        " waiting for transfers.",
    )


def _utilisation(report: Report) -> str:
    shares = " and ".join(f"{percent(share)} of the {PEAKS[kind]} peak" for kind, share in report.utilisation.items())
    return f"Its model FLOPs utilisation would be {shares}."


def lines(rows: Iterable[tuple[str, ...]], title: str, *columns: tuple[str, bool]) -> Table:
    """A table of texts."""
    table = _table(title, *columns)
    for row in rows:
        table.add_row(*row)
    return table
