"""The frontier on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxpar.compiler.remat_frontier.frontier import FrontierPoint, RematFrontier, hull
from jaxpar.memory.remat import BASE, LAYER_INPUT, LAYERS, nearest_preset
from jaxpar.units import percent, plural, seconds, size


def print_frontier(frontier: RematFrontier, console: Console) -> None:
    """Print the memory left for activations, what fits, and the table; a single sentence if nothing fits."""
    mesh = ", ".join(f"{axis} {n}" for axis, n in frontier.axes.items() if n > 1) or "one device"
    about = f" on {frontier.cluster}: {prod(frontier.axes.values())} x {frontier.gpu}, mesh {mesh}"
    console.print(Text.assemble((frontier.config, "bold"), about), soft_wrap=True)
    console.print(Text(verdict(frontier), "bold green" if frontier.cheapest else "bold red"), soft_wrap=True)
    if not frontier.fits:
        return
    console.print(_units(frontier), soft_wrap=True)
    console.print(_parts(frontier), soft_wrap=True)
    console.print()
    console.print(_table(frontier))
    for text in suggestions(frontier):
        console.print(text, soft_wrap=True, highlight=False)
    for note in frontier.notes:
        console.print(Text(f"Note: {note}", "yellow"), soft_wrap=True)
    console.print(
        Text(
            "Nothing was compiled: bytes follow from shapes, what is left for them is an estimate, and times are those "
            "that the planner predicts. Without --remat-frontier the step is compiled.",
            "dim",
        ),
        soft_wrap=True,
    )


def verdict(frontier: RematFrontier) -> str:
    """One sentence."""
    room = f"{size(frontier.room_bytes)} of {size(frontier.usable_bytes)} are left for activations"
    after = f"; {frontier.way_out}" if frontier.way_out else ""
    if frontier.room_bytes < 0:
        used = f"everything but activations takes {size(sum(frontier.parts.values()))} of {size(frontier.usable_bytes)}"
        return f"Nothing fits: {used}, {size(-frontier.room_bytes)} too much{after}."
    fitting = [point.name for point in frontier.presets if point.fits]
    if fitting:
        return f"{room}: {' and '.join(fitting) if len(fitting) < 3 else ', '.join(fitting)} fit."
    if frontier.cheapest is None:
        return (
            f"Nothing fits: {room}, and layers keep at least {size(frontier.least_bytes)} without host memory{after}."
        )
    return f"{room}: no preset fits, but other choices do."


def suggestions(frontier: RematFrontier) -> list[str]:
    """The cheapest choices that fit, in the form of the configuration."""
    found = []
    if (best := frontier.cheapest) is not None:
        found.append(f"Cheapest that fits: {_cost(best)}.\n{yaml(best)}")
    other = frontier.cheapest_with_host
    if other is not None and other.host_bytes and (best is None or other.seconds < best.seconds):
        all_ = size(other.host_bytes * frontier.gpus_per_host)
        found.append(
            f"With {size(other.host_bytes)} of host memory for each GPU ({all_} a host): {_cost(other)}.\n{yaml(other)}"
        )
    return found


def yaml(point: FrontierPoint) -> str:
    """A choice in the form of `memory.remat`: the nearest preset, and what differs."""
    maps = [nearest_preset(treatments) for _, treatments in point.runs]
    if len(maps) == 1:
        preset, different = maps[0]
        own = f"{{{_inside(preset, different)}}}" if different else preset
        return f"  memory:\n    remat: {own}"
    lines, first = ["  memory:", "    remat:"], 0
    for (layers, _), (preset, different) in zip(point.runs, maps, strict=True):
        own = f"{first}-{first + layers - 1}" if layers > 1 else f"{first}"
        lines.append(f"      - {{{LAYERS}: {own}, {_inside(preset, different)}}}")
        first += layers
    return "\n".join(lines)


def _inside(preset: str, different: Mapping[str, str]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in {BASE: preset, **different}.items())


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


def _parts(frontier: RematFrontier) -> str:
    parts = ", ".join(f"{name} {size(count)}" for name, count in frontier.parts.items() if count)
    return f"Beside activations: {parts}."


def _table(frontier: RematFrontier) -> Table:
    table = Table(
        title="What layers keep of a microbatch, per GPU, and the cost of recomputing the rest", title_justify="left",
        title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1),
    )  # fmt: skip
    for name in ("", "a layer", "in flight", "on host", "time a step", "fits", "recomputed"):
        table.add_column(name, justify="left" if name in ("", "fits", "recomputed") else "right", overflow="fold")
    corners = {str(point.runs): point for point in (*hull(frontier.points), *frontier.presets)}
    with_host = [point for point in hull(frontier.host_points) if point.host_bytes]
    for points in (corners.values(), with_host):
        for point in sorted(points, key=lambda point: (-point.total_bytes, point.seconds)):
            table.add_row(
                Text(point.name, "bold") if point.on_front else f"{point.name} (dominated)" if point.name else "",
                size(point.layer_bytes),
                size(point.total_bytes),
                size(point.host_bytes) if point.host_bytes else "",
                seconds(point.seconds),
                Text("yes", "green") if point.fits else Text("no", "red"),
                _words_of(point),
            )
        table.add_section()
    return table


def _words_of(point: FrontierPoint) -> str:
    """The same for each kind of layers, where they differ."""
    words = {kind: _words(own) for kind, own in point.kinds.items()}
    if len(set(words.values())) < 2:
        return _words(point.runs[0][1])
    return "; ".join(f"{kind}: {own}" for kind, own in words.items())


def _words(treatments: Mapping[str, str]) -> str:
    """Which activations are recomputed and which are offloaded, in as few words as possible."""
    again = [name for name, own in treatments.items() if own == "recompute"]
    kept = [name for name, own in treatments.items() if own != "recompute" and name != LAYER_INPUT]
    moved = [name for name, own in treatments.items() if own == "offload"]
    words = "nothing" if not again else ", ".join(again)
    if again and len(kept) < len(again):
        words = f"all but {', '.join(kept)}" if kept else "all but the input"
    return f"{words}; on the host: {', '.join(moved)}" if moved else words
