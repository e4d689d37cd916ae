"""The report as one self-contained HTML file: pictures, tables, and details under the mouse pointer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxpar.compiler.report.analysis import Analysis
from jaxpar.compiler.report.layer_schedule import LayerSchedule, layer_schedules, turn_words
from jaxpar.compiler.report.memory_timeline import MemoryTimeline, memory_timeline
from jaxpar.compiler.report.pictures import (
    CLASS_COLORS,
    KIND_COLORS,
    LEFT,
    RIGHT,
    WIDTH,
    Picture,
    collective_colors,
    layer_picture,
    memory_picture,
)
from jaxpar.compiler.report.record import Report
from jaxpar.compiler.report.text import PEAKS, verdict, warnings
from jaxpar.config.spelling import spaced
from jaxpar.pages.render import Cell, Table, page
from jaxpar.units import operations, percent, seconds, size


def html_page(analysis: Analysis, report: Report) -> str:
    """The page."""
    timeline, schedules = memory_timeline(analysis), list(layer_schedules(analysis))
    transfers = collective_colors(schedules)
    kinds = {span.kind for schedule in schedules for span in [*schedule.kernels, *schedule.waits]}
    used = {kind: color for kind, color in KIND_COLORS.items() if kind in kinds}
    return page(
        "compiler/report/page.html",
        f"{report.config} on {report.cluster}",
        styles=["compiler/report/page.css"],
        scripts=["compiler/report/page.js"],
        data={"timeline": _data(timeline)},
        report=report,
        mesh=", ".join(f"{axis} {count}" for axis, count in report.axes.items() if count > 1) or "one device",
        verdict=verdict(report),
        notes=warnings(report),
        cards=_cards(report),
        memory=memory_picture(timeline, report.device_bytes - report.reserve_bytes),
        classes=_classes(report),
        turn=turn_words(analysis.compilation.plan.layer_unroll.name),
        layers=_layers(schedules, transfers),
        layer_colors={spaced(name): color for name, color in (used | transfers).items()},
        tables=_tables(report),
        compiled=seconds(report.compile_seconds),
    )


def _cards(report: Report) -> list[tuple[str, str]]:
    shares = report.utilisation.items()
    return [
        (size(report.peak_bytes), "peak per GPU"),
        (operations(report.flops), f"matrix products, {percent(report.recompute_flops, report.flops)} recomputed"),
        (seconds(report.step_seconds), "time of a step, predicted"),
        *((percent(share), f"model FLOPs utilisation of the {PEAKS[kind]} peak") for kind, share in shares),
        (percent(report.exposed_fraction), f"of it waiting for transfers ({seconds(report.exposed_seconds)})"),
    ]


def _classes(report: Report) -> Table:
    rows = [(spaced(n), size(b), percent(b, report.peak_bytes)) for n, b in report.classes.items() if n != "host"]
    return Table(
        ("at the peak", "bytes", "share"), [*rows, ("host (pinned)", size(report.host_bytes), "")], numbers=(1, 2)
    )


def _layers(schedules: Sequence[LayerSchedule], colors: dict[str, str]) -> list[tuple[str, str, Picture]]:
    scale = max((schedule.seconds for schedule in schedules), default=0.0)
    shown = []
    for schedule in schedules:
        waited = sum(span.end - span.start for span in schedule.waits)
        waiting = f"{seconds(waited) if waited else 'none'} waiting"
        words = f"{seconds(schedule.seconds)}, of it {waiting}; {schedule.executions:,.0f} times a step"
        shown.append((schedule.title, words, layer_picture(schedule, scale, colors)))
    return shown


def _tables(report: Report) -> list[tuple[str, Table]]:
    hot = 0.02 * report.step_seconds
    traffic = [
        (
            row.axis,
            row.collective,
            row.kind,
            row.dtype,
            "host" if row.axis == "host" else "between nodes" if row.crosses_nodes else "in node",
            f"{row.count:,.0f}",
            size(row.bytes),
            seconds(row.seconds),
            Cell(seconds(row.exposed_s), hot=row.exposed_s > hot),
        )
        for row in report.collectives
    ]
    work = [
        (kind, operations(report.flops_by_kind[kind]) if kind in report.flops_by_kind else "", seconds(time))
        for kind, time in sorted(report.seconds_by_kind.items(), key=lambda item: -item[1])
    ]
    copies = [
        (c.shape, c.source or c.name, f"{c.count:,.0f}", seconds(c.seconds), seconds(c.seconds * c.count))
        for c in report.copies
    ]
    buffers = [(size(b.bytes), spaced(b.memory_class), b.shape, b.source or b.name) for b in report.largest_buffers]
    heads = ("axis", "collective", "as", "dtype", "link", "times", "sent", "needs", "exposed")
    return [
        ("Transfers per GPU and step", Table(heads, traffic, numbers=(5, 6, 7, 8))),
        ("Work per GPU and step", Table(("kind", "matrix products", "time"), work, numbers=(1, 2))),
        ("Copies on the device", Table(("shape", "asked for by", "times", "each", "step"), copies, numbers=(2, 3, 4))),
        ("Largest buffers at the peak", Table(("bytes", "class", "shape", "made by"), buffers, numbers=(0,))),
    ]


def _data(timeline: MemoryTimeline) -> dict[str, Any]:
    """What the script needs."""
    return {
        "width": WIDTH,
        "left": LEFT,
        "right": RIGHT,
        "length": timeline.length,
        "places": timeline.places,
        "ops": timeline.ops,
        "classes": {name: timeline.classes[name] for name in CLASS_COLORS},
        "peak": max(map(sum, zip(*timeline.classes.values(), strict=True)), default=0),
    }
