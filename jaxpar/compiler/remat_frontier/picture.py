"""Draws the frontier: bytes kept on a GPU against the time of recomputation, with the presets marked."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

from jaxpar.compiler.remat_frontier.record import FrontierPoint, RematFrontier, hull
from jaxpar.pages.labels import Box, place_labels
from jaxpar.units import GIB, MILLI, seconds, size

BLUE, GREEN, RED, GRAY, INK = "#2f6db3", "#3a8f5c", "#c8452d", "#8a94a0", "#1d2530"


def draw_frontier(frontier: RematFrontier, form: str) -> bytes:
    """The picture, of 9 x 5.4 inches, as `svg` or `png`."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": frontier.config, "svg.fonttype": "none", "font.size": 10}):
        made = io.BytesIO()
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        frontier_figure(frontier).savefig(made, format=form, metadata=metadata)
    return made.getvalue()


def frontier_figure(frontier: RematFrontier) -> Any:
    """The picture as matplotlib's figure."""
    # Figure and canvas directly: pyplot would keep global state and might look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _curve(axes, frontier.points, BLUE, "save or recompute")
    _curve(axes, frontier.host_points, GREEN, "save, recompute or offload")
    _room(axes, frontier)
    _frame(axes, frontier)
    _label_presets(figure, axes, frontier)
    return figure


def _curve(axes: Any, points: tuple[FrontierPoint, ...], color: str, label: str) -> None:
    """All points of a frontier, and the line that chunks with layers of two of them reach."""
    axes.plot(*_places(points), "o", color=color, markersize=3, alpha=0.35, markeredgewidth=0)
    axes.plot(*_places(hull(points)), "-", color=color, linewidth=1.8, label=label)


def _places(points: tuple[FrontierPoint, ...]) -> tuple[list[float], list[float]]:
    return [point.total_bytes / GIB for point in points], [point.seconds / MILLI for point in points]


def _room(axes: Any, frontier: RematFrontier) -> None:
    """Draw the memory left for activations, if it is within the picture."""
    room, left = frontier.room_bytes / GIB, size(frontier.room_bytes)
    most = max(point.total_bytes for point in (*frontier.points, *frontier.presets)) / GIB
    if room > 1.3 * most:
        axes.plot([], [], " ", label=f"all of it fits: {left} are left")
        return
    axes.axvline(max(room, 0), color=RED, linewidth=1.2, linestyle="--", label=f"left for activations: {left}")
    axes.axvspan(max(room, 0), 10 * most, color=RED, alpha=0.05, linewidth=0)
    axes.set_xlim(right=1.05 * max(room, most))


def _frame(axes: Any, frontier: RematFrontier) -> None:
    most = max(point.total_bytes for point in (*frontier.points, *frontier.presets)) / GIB
    slowest = max(point.seconds for point in (*frontier.points, *frontier.host_points)) / MILLI
    axes.set_xlim(-0.04 * most, max(axes.get_xlim()[1] if frontier.room_bytes / GIB <= 1.3 * most else 0, 1.08 * most))
    axes.set_ylim(-0.06 * slowest, 1.14 * slowest)
    units = "one microbatch" if frontier.units == 1 else f"{frontier.units} units in flight"
    axes.set_xlabel(f"activations kept on a GPU (GiB, {units})")
    axes.set_ylabel("recomputation and waiting, per step (ms)")
    mesh = ", ".join(f"{axis} {n}" for axis, n in frontier.axes.items() if n > 1) or "one device"
    axes.set_title(f"{frontier.config} on {frontier.cluster} ({mesh})", loc="left", fontsize=12, fontweight="bold")
    step = frontier.step_seconds / MILLI
    right = axes.secondary_yaxis("right", functions=(lambda ms: 100 * ms / step, lambda part: part * step / 100))
    right.set_ylabel("share of the step's time (%)")
    axes.grid(alpha=0.25)
    axes.spines["top"].set_visible(False)
    axes.legend(loc="upper right", facecolor="white", edgecolor="none", framealpha=1.0)


def _label_presets(figure: Any, axes: Any, frontier: RematFrontier) -> None:
    """A mark for each preset, and its name where it covers neither a line, a mark, nor another name."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    inside = axes.get_window_extent(renderer)
    covered = [axes.get_legend().get_window_extent(renderer)]
    for curve in (frontier.points, frontier.host_points):
        covered.extend(_along(axes, list(zip(*_places(hull(curve)), strict=True))))
    room = frontier.room_bytes / GIB
    covered.extend(_along(axes, [(room, axes.get_ylim()[0]), (room, axes.get_ylim()[1])]))
    for point in frontier.presets:
        axes.plot(*_places((point,)), "D", color=INK, markersize=6, zorder=5)
        covered.extend(_boxes(axes, [(point.total_bytes / GIB, point.seconds / MILLI)], 7))
    notes = [_note(axes, point, (0.0, 0.0)) for point in frontier.presets]
    sizes = [(extent.width + 4, extent.height + 4) for extent in (note.get_window_extent(renderer) for note in notes)]
    marks = [tuple(axes.transData.transform(place)) for place in zip(*_places(frontier.presets), strict=True)]
    area, pixel = Box(*inside.extents), figure.dpi / 72
    boxes = place_labels(marks, sizes, area, [Box(*box.extents) for box in covered], unit=pixel)
    for point, note, (x, y), box in zip(frontier.presets, notes, marks, boxes, strict=True):
        note.remove()
        if box is not None:
            _note(axes, point, (((box.x0 + box.x1) / 2 - x) / pixel, ((box.y0 + box.y1) / 2 - y) / pixel))


def _note(axes: Any, point: FrontierPoint, offset: tuple[float, float]) -> Any:
    """The name of a preset, its middle `offset` points (1/72 inch) from its mark."""
    return axes.annotate(
        f"{point.name}\n{size(point.total_bytes)}, {seconds(point.seconds) if point.seconds else 'no time'}",
        (point.total_bytes / GIB, point.seconds / MILLI),
        offset,
        textcoords="offset points",
        ha="center",
        va="center",
        multialignment="left",
        fontsize=9,
        color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        arrowprops={"arrowstyle": "-", "color": GRAY, "linewidth": 0.8, "shrinkB": 4},
        zorder=6,
    )


def _along(axes: Any, places: list[tuple[float, float]]) -> list[Any]:
    """Small boxes along a line, in pixels."""
    parts = 48
    between = [
        (a[0] + (b[0] - a[0]) * part / parts, a[1] + (b[1] - a[1]) * part / parts)
        for a, b in pairwise(places)
        for part in range(parts)
    ]
    return _boxes(axes, [*between, *places[-1:]], 2)


def _boxes(axes: Any, places: list[tuple[float, float]], margin: float) -> list[Any]:
    from matplotlib.transforms import Bbox

    pixels = axes.transData.transform(places)
    return [Bbox([[x - margin, y - margin], [x + margin, y + margin]]) for x, y in pixels]
