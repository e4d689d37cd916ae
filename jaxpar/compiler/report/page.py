"""The report as one self-contained HTML file: pictures, tables, and details under the mouse pointer."""

from __future__ import annotations

from jaxpar.compiler.report.analysis import Analysis
from jaxpar.compiler.report.layer_schedule import STYLE, TEMPLATE, layer_schedules, picture_of, turn_words
from jaxpar.compiler.report.memory_picture import memory_picture, memory_timeline, pointer_data
from jaxpar.compiler.report.record import Report
from jaxpar.compiler.report.tables import PEAKS, mesh_words, tables, verdict
from jaxpar.pages.render import page, render
from jaxpar.pages.units import operations, percent, seconds, size


def html_page(analysis: Analysis, report: Report) -> str:
    """Returns the HTML page of a compiled step."""
    timeline, layers = memory_timeline(analysis), layer_schedules(analysis)
    turn = turn_words(analysis.compilation.plan.layer_unroll.name)
    picture = picture_of(layers, f"{turn} over time") if layers else None
    return page(
        "compiler/report/page.html",
        f"{report.config} on {report.cluster}",
        styles=["compiler/report/page.css", *([STYLE] if picture else [])],
        scripts=["compiler/report/page.js"],
        data={"timeline": pointer_data(timeline)},
        report=report,
        mesh=mesh_words(report.axes),
        verdict=verdict(report),
        cards=_cards(report),
        memory=memory_picture(timeline, report.device_bytes - report.reserve_bytes),
        turn=turn,
        layers=render(TEMPLATE, alone=False, **picture) if picture else None,
        colors=picture["colors"] if picture else {},
        tables=tables(report),
        compiled=seconds(report.compile_seconds),
    )


def _cards(report: Report) -> list[tuple[str, str]]:
    lost = seconds(report.exposed_seconds + report.slowed_seconds)
    return [
        (size(report.peak_bytes), "peak per GPU"),
        (operations(report.flops), f"matrix products, {percent(report.recompute_flops, report.flops)} recomputed"),
        (seconds(report.step_seconds), "time of a step, predicted"),
        *((percent(share), f"model FLOPs utilisation of the {PEAKS[kind]} peak")
          for kind, share in report.utilisation.items()),
        (percent(report.exposed_fraction), f"of it for transfers ({lost})"),
    ]  # fmt: skip
