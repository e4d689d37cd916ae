"""Offloading a share of what a chunk keeps: which arrays of which layers (Kuaishou, USENIX ATC'24, section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from jaxpar.config.plan import LayerRun
from jaxpar.memory.remat import Treatment, joined

STAYS_BELOW = 2**20
"""Arrays of fewer bytes are not worth a copy."""


def saved_bytes(runs: Sequence[LayerRun], sizes: Mapping[str, int], treatment: str | None = None) -> int:
    """Bytes that layers keep of a microbatch, on the device and in host memory, or under one treatment alone.

    Args:
        sizes: bytes of each activation of one layer.
    """
    return sum(
        run.layers * sizes.get(name, 0)
        for run in runs
        for name, now in run.activations.items()
        if now == treatment or (treatment is None and now != "recompute")
    )


def offload_share(
    runs: Sequence[tuple[LayerRun, Mapping[str, int]]], fraction: float, stays_below: int | None = None
) -> tuple[LayerRun, ...]:
    """`runs`, each given with the bytes of its layers' activations, with as near to `fraction` of the kept bytes in
    host memory as whole arrays allow.

    The first layers are offloaded whole, since their backward is the last, and one more in part. Arrays of fewer bytes
    than `stays_below` (by default `STAYS_BELOW`) stay.
    """
    stays_below = STAYS_BELOW if stays_below is None else stays_below
    wanted = fraction * sum(saved_bytes([run], sizes) for run, sizes in runs)
    shared: list[LayerRun] = []
    for run, sizes in runs:
        moved = {n for n, now in run.activations.items() if now == "save" and sizes.get(n, 0) >= stays_below}
        each = sum(sizes[name] for name in moved)
        full_layers = min(run.layers, int(max(0.0, wanted) // each)) if each else 0
        shared.append(_offloading(run, full_layers, moved))
        wanted -= full_layers * each
        if full_layers < run.layers:
            part = _nearest({name: sizes[name] for name in sorted(moved)}, wanted)
            shared.append(_offloading(run, 1, part))
            shared.append(LayerRun(run.layers - full_layers - 1, run.activations))
            wanted -= sum(sizes[name] for name in part)
    return joined(shared)


def _offloading(run: LayerRun, layers: int, names: set[str]) -> LayerRun:
    moved: dict[str, Treatment] = dict.fromkeys(names, "offload")
    return LayerRun(layers, run.activations | moved)


def _nearest(sizes: Mapping[str, int], wanted: float) -> set[str]:
    """The arrays whose total bytes are nearest to `wanted`; of equals, the fewest."""
    sets = [set(names) for count in range(len(sizes) + 1) for names in combinations(sizes, count)]
    return min(sets, key=lambda names: abs(sum(sizes[name] for name in names) - wanted))
