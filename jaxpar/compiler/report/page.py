"""The report as one self-contained HTML file: pictures, tables, and details under the mouse pointer."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from jaxpar.compiler.report.analysis import Analysis
from jaxpar.compiler.report.layer_schedule import LayerSchedule, layer_schedules
from jaxpar.compiler.report.memory_timeline import MemoryTimeline, memory_timeline
from jaxpar.compiler.report.pictures import (
    CLASS_COLORS,
    KIND_COLORS,
    LEFT,
    RIGHT,
    WIDTH,
    collective_colors,
    layer_picture,
    legend,
    memory_picture,
)
from jaxpar.compiler.report.record import Report
from jaxpar.compiler.report.text import verdict, warnings
from jaxpar.config.spelling import spaced
from jaxpar.observe.html import Hot, cards, document, notes, table
from jaxpar.units import operations, percent, seconds, size

_STYLE = Path(__file__).with_name("page.css")
_SCRIPT = Path(__file__).with_name("page.js")


def html_page(analysis: Analysis, report: Report) -> str:
    """The page."""
    timeline, schedules = memory_timeline(analysis), layer_schedules(analysis)
    title = f"{report.config} on {report.cluster}"
    mesh = ", ".join(f"{axis} {count}" for axis, count in report.axes.items() if count > 1) or "one device"
    body = [
        f"<h1>{escape(title)}</h1><p class='dim'>{report.devices} x {escape(report.gpu)}, mesh {escape(mesh)}</p>",
        f'<p class="verdict {"fits" if report.fits else "fails"}">{escape(verdict(report))}</p>',
        notes(warnings(report)),
        _cards(report),
        _memory(report, timeline),
        _layers(schedules),
        _tables(report),
        "<p class='dim'>Read from XLA's program, with times predicted at fitted speeds; only the compile was "
        f"measured, {seconds(report.compile_seconds)}. docs/inspect.md explains each number.</p>",
    ]
    return document(
        title, "".join(body), style=_STYLE.read_text(), script=_SCRIPT.read_text(), data={"timeline": _data(timeline)}
    )


def _cards(report: Report) -> str:
    return cards(
        [
            (size(report.peak_bytes), "peak per GPU"),
            (operations(report.flops), f"matrix products, {percent(report.recompute_flops, report.flops)} recomputed"),
            (seconds(report.step_seconds), "time of a step, predicted"),
            (
                percent(report.exposed_fraction),
                f"of it waiting for transfers ({seconds(report.exposed_seconds)})",
            ),
        ]
    )


def _memory(report: Report, timeline: MemoryTimeline) -> str:
    fits = report.device_bytes - report.reserve_bytes
    rows = [(spaced(n), size(b), percent(b, report.peak_bytes)) for n, b in report.classes.items() if n != "host"]
    rows.append(("host (pinned)", size(report.host_bytes), ""))
    return (
        "<h2>Memory over the program</h2><p class='dim'>From left to right the ops of the step in their order; "
        f"a loop appears once.</p>{memory_picture(timeline, fits)}<p id='said'></p>{legend(CLASS_COLORS)}"
        + table(("at the peak", "bytes", "share"), rows, numbers=(1, 2))
    )


def _layers(schedules: Sequence[LayerSchedule]) -> str:
    if not schedules:
        return "<h2>One layer</h2><p>The program has no loop over layers: XLA unrolls fewer than three.</p>"
    colors, scale = collective_colors(list(schedules)), max(schedule.seconds for schedule in schedules)
    shown = [
        "<h2>One layer over time</h2><p class='dim'>Predicted times, both pictures on one scale. A transfer "
        "that is not complete when its result is needed makes the GPU wait (red).</p>"
    ]
    for schedule in schedules:
        waited = sum(span.end - span.start for span in schedule.waits)
        waiting = f"{seconds(waited) if waited else 'none'} waiting"
        shown.append(
            f"<p><b>{schedule.title}</b>: {seconds(schedule.seconds)}, of it {waiting}; "
            f"{schedule.executions:,.0f} times a step</p>{layer_picture(schedule, scale, colors)}"
        )
    kinds = {span.kind for schedule in schedules for span in [*schedule.kernels, *schedule.waits]}
    used = {kind: color for kind, color in KIND_COLORS.items() if kind in kinds}
    return "".join(shown) + legend(used | colors)


def _tables(report: Report) -> str:
    hot = 0.02 * report.step_seconds
    traffic = [
        (
            row.axis,
            row.verb,
            row.kind,
            row.dtype,
            "host" if row.axis == "host" else "between nodes" if row.crosses_nodes else "in node",
            f"{row.count:,.0f}",
            size(row.bytes),
            seconds(row.seconds),
            Hot(seconds(row.exposed_s)) if row.exposed_s > hot else seconds(row.exposed_s),
        )
        for row in report.collectives
    ]
    work = [
        (kind, operations(report.flops_by_kind[kind]) if kind in report.flops_by_kind else "", seconds(time))
        for kind, time in sorted(report.seconds_by_kind.items(), key=lambda item: -item[1])
    ]
    buffers = [(size(b.bytes), spaced(b.memory_class), b.shape, b.source or b.name) for b in report.largest_buffers]
    heads = ("axis", "collective", "as", "dtype", "link", "times", "sent", "needs", "exposed")
    return (
        "<h2>Transfers per GPU and step</h2>"
        + table(heads, traffic, numbers=(5, 6, 7, 8))
        + "<h2>Work per GPU and step</h2>"
        + table(("kind", "matrix products", "time"), work, numbers=(1, 2))
        + "<h2>Largest buffers at the peak</h2>"
        + table(("bytes", "class", "shape", "made by"), buffers, numbers=(0,))
    )


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
