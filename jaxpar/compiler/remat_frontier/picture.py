"""Draws the frontier: bytes kept on a GPU against the time of recomputation, with the presets marked."""

from __future__ import annotations

from pathlib import Path

from jaxpar.compiler.remat_frontier.frontier import FrontierPoint, RematFrontier, hull
from jaxpar.units import GIB, MILLI, size


def draw_frontier(frontier: RematFrontier, file: Path) -> None:
    """Write the picture in the format of the file's ending, `.svg` or `.png`."""
    # Not pyplot, which keeps global state and may look for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    curves = (frontier.points, "#2f6db3", "save or recompute"), (frontier.host_points, "#3a8f5c", "or offload")
    for points, color, label in curves:
        axes.plot(*_places(points), "o", color=color, markersize=3, alpha=0.35)
        axes.plot(*_places(hull(points)), "-", color=color, label=label)
    for point, marker in zip(frontier.presets, "DsPX^v*", strict=False):
        axes.plot(*_places((point,)), marker, color="#1d2530", label=point.name)
    axes.axvline(frontier.room_bytes / GIB, color="#c8452d", linestyle="--", label=f"{size(frontier.room_bytes)} left")
    axes.set(title=f"{frontier.config} on {frontier.cluster}", ylabel="time of recomputation, ms a step")
    axes.set_xlabel("activations kept on a GPU, GiB; predicted, not measured")
    axes.legend(frameon=False)
    figure.savefig(file)


def _places(points: tuple[FrontierPoint, ...]) -> tuple[list[float], list[float]]:
    return [point.total_bytes / GIB for point in points], [point.seconds / MILLI for point in points]
