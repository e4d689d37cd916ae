"""The front on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxpar.compiler.remat_front.record import FrontPoint, RematFront, hull
from jaxpar.memory.remat import BASE, LAYER_INPUT, LAYERS, PRESETS, remat_map
from jaxpar.observe.amounts import seconds, share, size


def print_front(front: RematFront, console: Console) -> None:
    """What is left for activations, what fits, and the table; where nothing does, a sentence alone."""
    mesh = ", ".join(f"{axis} {n}" for axis, n in front.axes.items() if n > 1) or "one device"
    console.print(
        Text.assemble((front.config, "bold"), f" on {front.cluster}: {front.devices} x {front.gpu}, mesh {mesh}"),
        soft_wrap=True,
    )
    console.print(Text(verdict(front), "bold green" if front.cheapest else "bold red"), soft_wrap=True)
    if not front.fits:
        return
    console.print(_units(front), soft_wrap=True)
    console.print(_parts(front), soft_wrap=True)
    console.print()
    console.print(_table(front))
    for text in suggestions(front):
        console.print(text, soft_wrap=True, highlight=False)
    for note in front.notes:
        console.print(Text(f"Note: {note}", "yellow"), soft_wrap=True)
    console.print(
        Text(
            "Nothing was compiled: bytes follow from shapes, what is left for them is an estimate, and times are those "
            "of a roofline at peak speeds. Without --remat-front the step is compiled.",
            "dim",
        ),
        soft_wrap=True,
    )


def verdict(front: RematFront) -> str:
    """One sentence."""
    room = f"{size(front.room_bytes)} of {size(front.usable_bytes)} are left for activations"
    after = f"; {front.way_out}" if front.way_out else ""
    if front.room_bytes < 0:
        taken = f"what is no activation takes {size(sum(front.parts.values()))} of {size(front.usable_bytes)}"
        return f"Nothing fits: {taken}, {size(-front.room_bytes)} too much{after}."
    fitting = [point.name for point in front.presets if point.fits]
    if fitting:
        return f"{room}: {' and '.join(fitting) if len(fitting) < 3 else ', '.join(fitting)} fit."
    if front.cheapest is None:
        return f"Nothing fits: {room}, and layers keep {size(front.least_bytes)} at least without host memory{after}."
    return f"{room}: no preset fits, but other choices do."


def suggestions(front: RematFront) -> list[str]:
    """The cheapest choices that fit, as one writes them."""
    found = []
    if (best := front.cheapest) is not None:
        found.append(f"Cheapest that fits: {_cost(best)}.\n{yaml(best)}")
    other = front.cheapest_with_host
    if other is not None and other.host_bytes and (best is None or other.seconds < best.seconds):
        all_ = size(other.host_bytes * front.gpus_per_host)
        found.append(
            f"With {size(other.host_bytes)} of host memory for each GPU ({all_} a host): {_cost(other)}.\n{yaml(other)}"
        )
    return found


def yaml(point: FrontPoint) -> str:
    """A choice as `memory.remat` has it: the nearest preset, and what differs."""
    maps = [_map(treatments) for _, treatments in point.runs]
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


def _map(treatments: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The preset that differs from `treatments` least, and how."""
    bases = {preset: remat_map(preset, treatments) for preset in PRESETS}
    changes = {
        preset: {name: own for name, own in treatments.items() if own != base[name]} for preset, base in bases.items()
    }
    nearest = min(changes, key=lambda preset: len(changes[preset]))
    return nearest, changes[nearest]


def _cost(point: FrontPoint) -> str:
    again = f"{seconds(point.seconds)} a step ({100 * point.time_share:.1f}%)" if point.seconds else "no time"
    return f"{size(point.total_bytes)} kept on each GPU, {again}"


def _units(front: RematFront) -> str:
    chunks = f"{front.chunks} chunks a rank, each " if front.chunks > 1 else ""
    units = f"{front.units} microbatch{'es' if front.units > 1 else ''}"
    if front.axes["pipe"] > 1:
        ranks = ", ".join(map(str, front.units_of_ranks))
        units = f"{front.units} (microbatch, chunk) pairs on each pipe rank, of which ranks fill {ranks}"
    return (
        f"{chunks}{front.layers} layers; microbatches of {front.microbatch_rows} row(s) a GPU, {front.microbatches} a "
        f"step; kept at the same time: {units}."
    )


def _parts(front: RematFront) -> str:
    parts = ", ".join(f"{name} {size(count)}" for name, count in front.parts.items() if count)
    return f"Beside activations: {parts}."


def _table(front: RematFront) -> Table:
    table = Table(
        title="What layers keep of a microbatch, per GPU, and what recomputing the rest costs",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
    )
    for name, number in (
        ("", False),
        ("a layer", True),
        ("a chunk", True),
        ("in flight", True),
        ("on host", True),
        ("FLOPs", True),
        ("time a step", True),
        ("fits", False),
        ("recomputed", False),
    ):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    rows = {tuple((n, *own.items()) for n, own in point.runs): point for point in (*hull(front.points), *front.presets)}
    for point in sorted(rows.values(), key=lambda point: (-point.total_bytes, point.seconds)):
        table.add_row(*_cells(point))
    with_host = [point for point in hull(front.host_points) if point.host_bytes]
    table.add_section()
    for point in sorted(with_host, key=lambda point: (-point.total_bytes, point.seconds)):
        table.add_row(*_cells(point))
    return table


def _cells(point: FrontPoint) -> tuple[str | Text, ...]:
    return (
        Text(point.name, "bold") if point.on_front else Text(f"{point.name} (off the front)" if point.name else ""),
        size(point.layer_bytes),
        size(point.chunk_bytes),
        size(point.total_bytes),
        size(point.host_bytes) if point.host_bytes else "",
        share(point.flops_share, 1),
        seconds(point.seconds),
        Text("yes", "green") if point.fits else Text("no", "red"),
        _words_of(point),
    )


def _words_of(point: FrontPoint) -> str:
    """The same for each kind of layers, where they differ."""
    said = {kind: _words(own) for kind, own in point.kinds.items()}
    if len(set(said.values())) < 2:
        return _words(point.runs[0][1])
    return "; ".join(f"{kind}: {own}" for kind, own in said.items())


def _words(treatments: Mapping[str, str]) -> str:
    """Which activations are recomputed and which are offloaded, in as few words as there are."""
    again = [name for name, own in treatments.items() if own == "recompute"]
    kept = [name for name, own in treatments.items() if own != "recompute" and name != LAYER_INPUT]
    moved = [name for name, own in treatments.items() if own == "offload"]
    said = "nothing" if not again else ", ".join(again)
    if again and len(kept) < len(again):
        said = f"all but {', '.join(kept)}" if kept else "all but the input"
    return f"{said}; on the host: {', '.join(moved)}" if moved else said
