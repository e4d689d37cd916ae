"""The tables of a report, for the screen and for the page, and those of two reports side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxpar.compiler.report.record import Collective, Report
from jaxpar.config.spelling import spaced
from jaxpar.pages.render import Cell, Table
from jaxpar.units import operations, percent, seconds, size

BAR = 36
"""Characters of a bar of the length of the peak."""
PEAKS = {"bfloat16": "bfloat16", "float16": "float16", "float8": "FP8"}
"""Names of peaks."""
type Row = tuple[str, ...]


class Titled(NamedTuple):
    """A table and its title."""

    title: str
    table: Table


def mesh_words(report: Report) -> str:
    """The axes with several ranks."""
    return ", ".join(f"{axis} {size}" for axis, size in report.axes.items() if size > 1) or "one device"


def verdict(report: Report) -> str:
    """One sentence."""
    usable = size(report.device_bytes - report.reserve_bytes)
    there = f"{usable} ({size(report.device_bytes)} less {size(report.reserve_bytes)} for CUDA and NCCL)"
    if report.fits:
        return f"It fits: {size(report.allocated_bytes)} of {there}, {size(report.margin_bytes)} to spare."
    too_much = f"{size(report.allocated_bytes)} of {there}, {size(-report.margin_bytes)} too much"
    return f"It does NOT fit: {too_much}{f'; {report.way_out}' if report.way_out else ''}."


def memory_table(report: Report) -> Titled:
    """Bytes by class at the peak."""
    rows = []
    for name, count in report.classes.items():
        if name != "host":
            bar = "█" * round(BAR * count / report.peak_bytes) or ("▏" if count else "")
            rows.append((spaced(name), size(count), percent(count, report.peak_bytes), bar))
    rows += [("peak", size(report.peak_bytes), "", ""), ("host (pinned)", size(report.host_bytes), "", "")]
    return Titled("Memory per GPU at the peak", Table(("class", "bytes", "share", ""), rows, numbers=(1, 2)))


def tables(report: Report, copies: int | None = None) -> list[Titled]:
    """All but that of memory; with the longest `copies`, by default all of them."""
    return [_collectives(report), _exposures(report), _work(report), _copies(report, copies), _buffers(report)]


def _collectives(report: Report) -> Titled:
    hot = 0.02 * report.step_seconds
    rows = [
        (
            row.axis,
            row.collective,
            row.dtype,
            _link(row),
            f"{row.count:,.0f}",
            size(row.bytes),
            seconds(row.seconds),
            Cell(seconds(row.exposed_s), hot=row.exposed_s > hot),
            row.kind,
        )
        for row in report.collectives
    ]
    heads = ("axis", "collective", "dtype", "link", "times", "sent", "needs", "exposed", "as")
    return Titled("Transfers per GPU and step", Table(heads, rows, numbers=(4, 5, 6, 7)))


def _link(row: Collective) -> str:
    return "host" if row.axis == "host" else "between" if row.crosses_nodes else "in node"


def _exposures(report: Report) -> Titled:
    rows = []
    for row in report.exposures:
        beside = "synchronous" if row.synchronous else seconds(row.enclosed_s)
        times = f"{row.count:,.0f}"
        rows.append((row.collectives, row.source, times, seconds(row.needs_s), beside, seconds(row.exposed_s)))
    heads = ("collective", "asked for by", "times", "each needs", "compute beside", "each exposed")
    return Titled("Waited for longest", Table(heads, rows, numbers=(2, 3, 4, 5)))


def _work(report: Report) -> Titled:
    rows: list[Row] = []
    for kind, time in sorted(report.seconds_by_kind.items(), key=lambda item: -item[1]):
        flops = report.flops_by_kind.get(kind, 0.0)
        rows.append((kind, operations(flops) if flops else "", seconds(time)))
    recomputed = f"{operations(report.recompute_flops)} ({percent(report.recompute_flops, report.flops)})"
    rows += [
        ("all", operations(report.flops), seconds(report.compute_seconds)),
        ("of it recomputed", recomputed, ""),
        ("longer beside transfers", "", seconds(report.slowed_seconds)),
    ]
    if report.float8_flops:
        share = percent(report.float8_flops, report.flops)
        rows.append(("of it in FP8, at its own rate", f"{operations(report.float8_flops)} ({share})", ""))
    return Titled("Work per GPU and step", Table(("kind", "matrix products", "time"), rows, numbers=(1, 2)))


def _copies(report: Report, most: int | None) -> Titled:
    shown, others = report.copies[:most], report.copies[len(report.copies[:most]) :]
    rows = [
        (copy.shape, copy.source or copy.name, f"{copy.count:,.0f}", seconds(copy.seconds), seconds(copy.per_step))
        for copy in shown
    ]
    if others:
        rest = seconds(sum(copy.per_step for copy in others))
        rows.append((f"{len(others)} more", "listed by --json and --out FILE.html", "", "", rest))
    heads = ("shape", "asked for by", "times", "each", "step")
    return Titled("Longest copies on the device", Table(heads, rows, numbers=(2, 3, 4)))


def _buffers(report: Report) -> Titled:
    rows = [(size(b.bytes), spaced(b.memory_class), b.shape, b.source or b.name) for b in report.largest_buffers]
    return Titled("Largest buffers at the peak", Table(("bytes", "class", "shape", "made by"), rows, numbers=(0,)))


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


def differences(before: Report, after: Report) -> list[Titled]:
    """Memory by class, transfers, work and waiting of two reports; of transfers only those that differ."""
    memory = [_row(spaced(name), before.classes[name], after.classes[name], size) for name in before.classes]
    memory.append(_row("peak", before.peak_bytes, after.peak_bytes, size))
    work: list[tuple[str, str, Callable[[float], str]]] = [
        ("matrix products", "flops", operations),
        ("of it recomputed", "recompute_flops", operations),
        ("compute", "compute_seconds", seconds),
        ("longer beside transfers", "slowed_seconds", seconds),
        ("exposed", "exposed_seconds", seconds),
        ("share for transfers", "exposed_fraction", percent),
    ]
    rows = [_row(name, getattr(before, field), getattr(after, field), show) for name, field, show in work]
    heads = ("", before.config, after.config, "change")
    return [
        Titled(title, Table(heads, found, numbers=(1, 2, 3)))
        for title, found in (
            ("Memory per GPU", memory),
            ("Sent per GPU and step", _traffic(before, after)),
            ("Work and waiting per GPU and step", rows),
        )
    ]


def _traffic(before: Report, after: Report) -> list[Row]:
    name = lambda row: f"{row.axis} {row.collective} ({row.kind}, {row.dtype}) {_link(row)}"
    first, second = ({name(row): row for row in report.collectives} for report in (before, after))
    rows = []
    for key in dict.fromkeys([*first, *second]):
        old, new = ((c.bytes, c.count, c.exposed_s) if c else (0.0,) * 3 for c in (first.get(key), second.get(key)))
        if old != new:
            rows.append(_row(key, old[0], new[0], size))
            rows.append(_row("  times", old[1], new[1], lambda count: f"{count:,.0f}"))
            rows.append(_row("  exposed", old[2], new[2], seconds))
    return rows


def _row(name: str, old: float, new: float, show: Callable[[float], str]) -> Row:
    if old == new:
        return name, show(old), show(new), "="
    change = new - old
    sign = "+" if change > 0 else "-"
    relative = f" ({sign}{percent(abs(change), abs(old), digits=0)})" if old else ""
    return name, show(old), show(new), f"{sign}{show(abs(change))}{relative}"
