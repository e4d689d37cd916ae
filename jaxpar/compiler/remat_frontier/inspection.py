"""Prints and draws the frontier: the work behind `python -m jaxpar.inspect --remat-frontier`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.inspection import check_writable, screen, way_out
from jaxpar.compiler.remat_frontier.frontier import FrontierPoint, RematFrontier, hull, make_frontier, without_remat
from jaxpar.compiler.report.text import print_heading, print_notes, print_table
from jaxpar.config import load_config
from jaxpar.config.strict_json import json_text
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.memory.remat import AUTO, BASE, LAYER_INPUT, LAYERS, nearest_preset
from jaxpar.pages.render import Cell, Table
from jaxpar.units import GIB, MILLI, percent, plural, seconds, size


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
        frontier = replace(frontier, way_out=way_out(without_remat(config), cluster))
    for picture in pictures:
        draw_frontier(frontier, picture)
    if as_json:
        print(json_text(asdict(frontier), indent=2))
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


def _places(points: Sequence[FrontierPoint]) -> tuple[list[float], list[float]]:
    return [point.total_bytes / GIB for point in points], [point.seconds / MILLI for point in points]


def print_frontier(frontier: RematFrontier, console: Console) -> None:
    """Print the memory left for activations, what fits, and the table; a single sentence if nothing fits."""
    print_heading(frontier, verdict(frontier), frontier.cheapest is not None, console)
    if not frontier.fits:
        return
    console.print(_units(frontier), soft_wrap=True)
    parts = ", ".join(f"{name} {size(count)}" for name, count in frontier.parts.items() if count)
    console.print(f"Beside activations: {parts}.", soft_wrap=True)
    title = "What layers keep of a microbatch, per GPU, and the cost of recomputing the rest"
    print_table(title, _table(frontier), console)
    for text in suggestions(frontier):
        console.print(text, soft_wrap=True, highlight=False)
    print_notes(
        frontier.notes,
        "Nothing was compiled: bytes follow from shapes, what is left for them is an estimate, and times are those "
        "that the planner predicts. Without --remat-frontier the step is compiled.",
        console,
    )


def verdict(frontier: RematFrontier) -> str:
    """One sentence."""
    room = f"{size(frontier.room_bytes)} of {size(frontier.usable_bytes)} are left for activations"
    after = f"; {frontier.way_out}" if frontier.way_out else ""
    if frontier.room_bytes < 0:
        used = f"everything but activations takes {size(sum(frontier.parts.values()))} of {size(frontier.usable_bytes)}"
        return f"Nothing fits: {used}, {size(-frontier.room_bytes)} too much{after}."
    if fitting := [point.name for point in frontier.presets if point.fits]:
        return f"{room}: {' and '.join(fitting) if len(fitting) < 3 else ', '.join(fitting)} fit."
    if frontier.cheapest is None:
        least = size(frontier.points[0].total_bytes)
        return f"Nothing fits: {room}, and layers keep at least {least} without host memory{after}."
    return f"{room}: no preset fits, but other choices do."


def suggestions(frontier: RematFrontier) -> list[str]:
    """The cheapest choices that fit, in the form of the configuration."""
    best, other, texts = frontier.cheapest, frontier.cheapest_with_host, []
    if best is not None:
        texts.append(f"Cheapest that fits: {_cost(best)}.\n{yaml(best)}")
    if other is not None and other.host_bytes and (best is None or other.seconds < best.seconds):
        host = size(other.host_bytes * frontier.gpus_per_host)
        texts.append(
            f"With {size(other.host_bytes)} of host memory for each GPU ({host} a host): {_cost(other)}.\n{yaml(other)}"
        )
    return texts


def yaml(point: FrontierPoint) -> str:
    """A choice in the form of `memory.remat`: the nearest preset, and what differs."""
    lines, first = ["  memory:", "    remat:"], 0
    for layers, treatments in point.runs:
        preset, different = nearest_preset(treatments)
        inside = ", ".join(f"{key}: {value}" for key, value in {BASE: preset, **different}.items())
        if len(point.runs) == 1:
            return f"  memory:\n    remat: {f'{{{inside}}}' if different else preset}"
        which = f"{first}-{first + layers - 1}" if layers > 1 else f"{first}"
        lines.append(f"      - {{{LAYERS}: {which}, {inside}}}")
        first += layers
    return "\n".join(lines)


def _cost(point: FrontierPoint) -> str:
    again = f"{seconds(point.seconds)} a step ({percent(point.time_share)})" if point.seconds else "no time"
    return f"{size(point.total_bytes)} kept on each GPU, {again}"


def _units(frontier: RematFrontier) -> str:
    chunks = f"{frontier.chunks} chunks a rank, each " if frontier.chunks > 1 else ""
    units = f"{frontier.units} microbatch{'es' if frontier.units > 1 else ''}"
    if frontier.axes["pipe"] > 1:
        ranks = ", ".join(map(str, frontier.units_of_ranks))
        units = f"{frontier.units} (microbatch, chunk) pairs on each pipe rank, of which ranks fill {ranks}"
    return (
        f"{chunks}{plural(frontier.layers, 'layer')}; microbatches of {plural(frontier.microbatch_rows, 'row')} a GPU, "
        f"{frontier.microbatches} a step; kept at the same time: {units}."
    )


def _table(frontier: RematFrontier) -> Table:
    """The corners of the frontier and the presets, then the corners with host memory."""
    corners = {str(point.runs): point for point in (*hull(frontier.points), *frontier.presets)}
    with_host = [point for point in hull(frontier.host_points) if point.host_bytes]
    largest_first = lambda points: sorted(points, key=lambda point: (-point.total_bytes, point.seconds))
    rows = [
        (
            f"{point.name} (dominated)" if point.name and not point.on_front else point.name,
            size(point.layer_bytes),
            size(point.total_bytes),
            size(point.host_bytes) if point.host_bytes else "",
            seconds(point.seconds),
            "yes" if point.fits else Cell("no", hot=True),
            _recomputed(point),
        )
        for point in (*largest_first(corners.values()), *largest_first(with_host))
    ]
    heads = ("", "a layer", "in flight", "on host", "time a step", "fits", "recomputed")
    return Table(heads, rows, numbers=(1, 2, 3, 4))


def _recomputed(point: FrontierPoint) -> str:
    """Activations that are recomputed and offloaded; by kind of layer, where kinds differ."""
    words = {kind: _words(treatments) for kind, treatments in point.kinds.items()}
    if len(set(words.values())) < 2:
        return _words(point.runs[0][1])
    return "; ".join(f"{kind}: {text}" for kind, text in words.items())


def _words(treatments: Mapping[str, str]) -> str:
    """Activations that are recomputed and offloaded, in as few words as possible."""
    again = [name for name, treatment in treatments.items() if treatment == "recompute"]
    others = [name for name in treatments if name not in again and name != LAYER_INPUT]
    offloaded = [name for name, treatment in treatments.items() if treatment == "offload"]
    words = "nothing" if not again else ", ".join(again)
    if again and len(others) < len(again):
        words = f"all but {', '.join(others) or 'the input'}"
    return f"{words}; on the host: {', '.join(offloaded)}" if offloaded else words
