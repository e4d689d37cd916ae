"""Prints and draws the frontier: the work behind `python -m jaxpar.inspect --remat-frontier`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.inspection import check_writable, screen, way_out
from jaxpar.compiler.remat_frontier.frontier import FrontierPoint, RematFrontier, hull, make_frontier
from jaxpar.compiler.remat_frontier.text import print_frontier
from jaxpar.config import load_config
from jaxpar.config.strict_json import json_text
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.memory.remat import AUTO, DEFAULT
from jaxpar.units import GIB, MILLI, size


def inspect_frontier(
    file: Path, where: str, overrides: Sequence[str], as_json: bool = False, pictures: Sequence[Path] = ()
) -> None:
    """Search, print, and draw `pictures` (.svg or .png). Raises `UserError` with one sentence."""
    for picture in pictures:
        check_writable(picture)
    config, cluster = load_config(file, overrides), parse_cluster(where)
    if config.memory.remat != AUTO:  # the frontier replaces the configured value, which may still be wrong
        plan_for(config, cluster)
    frontier = make_frontier(config, cluster, file.stem)
    if not frontier.fits:
        asked = replace(config, memory=replace(config.memory, remat=DEFAULT, offload_fraction=0.0))
        frontier = replace(frontier, way_out=way_out(asked, cluster))
    for picture in pictures:
        draw_frontier(frontier, picture)
    if as_json:
        print(json_text(frontier.to_dict(), indent=2))
        return
    console = screen()
    print_frontier(frontier, console)
    for picture in pictures:
        console.print(f"Picture: {picture}", soft_wrap=True, highlight=False)


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
