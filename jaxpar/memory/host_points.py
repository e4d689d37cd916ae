"""Choices of a layer that keep a part of its activations on the host: few enough for a search over many layouts.

A byte that stays, on the device or on the host, saves the recomputation of the activation that it belongs to. The
best set of activations of a given size therefore consists of those that take the most seconds to recompute for each
byte. Of each such set, neighbours in this order are offloaded together, with the layer's input or without.

The outputs of attention stay on the device: beside their copies XLA's schedule waits for the next gathers of weights.
gpt3-175b on 256 H800s, compiled, waits 0.96 s for its gathers and 0.41 s for copies with the outputs of 53 of its 96
layers on the host, and 0.08 s and 0.02 s with none. So does what is inside a feed-forward, which is made last, needed
first, and large: llama3-70b on 256 H100s, compiled, waits 2.57 s for the copies of 74 of 80 layers, and not 0.70 s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, groupby

from jaxpar.layers.declared import hidden_names
from jaxpar.memory.costs import LayerCosts
from jaxpar.memory.pareto import NothingFits, Point, cheapest_of_kinds, point_of, undominated
from jaxpar.memory.remat import LAYER_INPUT, Treatment, is_attention_core

SMALL = 1 / 64
"""Activations of less than this share of a layer's bytes are treated as those before them."""

type Names = tuple[str, ...]


def host_points(costs: LayerCosts) -> list[Point]:
    """Choices of one layer, without those whose copies take longer than its forward, and those that another dominates.

    Activations with the same seconds a byte are treated alike.
    """
    size = lambda names: sum(costs.sizes[name] for name in names)
    hidden = costs.host_bandwidth * costs.forward_seconds
    points: dict[tuple[int, int, int], Point] = {}
    steps, inside = _sort_by_value(costs), hidden_names()
    for end in range(len(steps) + 1):
        treatments: dict[str, Treatment] = dict.fromkeys(costs.sizes, "recompute")
        treatments |= dict.fromkeys((LAYER_INPUT, *(name for step in steps[:end] for name in step)), "save")
        movable = [step for step in steps[:end] if not any(is_attention_core(name) or name in inside for name in step)]
        windows = [movable[first:last] for first, last in combinations(range(len(movable) + 1), 2)]
        for window in [(), *windows]:
            for moved in (window, [(LAYER_INPUT,), *window]):
                names = [name for step in moved for name in step]
                if size(names) <= hidden:
                    copied: dict[str, Treatment] = dict.fromkeys(names, "offload")
                    one = point_of(costs, treatments | copied)
                    points.setdefault((one.device_bytes, one.picoseconds, one.host_bytes), one)
    triples = list(points)
    return [points[triples[index]] for index in undominated(triples)]


def _sort_by_value(costs: LayerCosts) -> list[Names]:
    """Activations that are treated alike, those first that take the most seconds for each byte."""
    size = lambda names: sum(costs.sizes[name] for name in names)
    value = lambda one: round(one.seconds / max(1, size(one.outputs)), 15)
    ordered = sorted(costs.recomputations, key=value, reverse=True)
    steps: list[Names] = []
    for _, ties in groupby(ordered, key=value):
        names = tuple(name for one in ties for name in one.outputs)
        if steps and size(names) < SMALL * size(costs.sizes):
            steps[-1] += names
        else:
            steps.append(names)
    return steps


def cheapest_with_host(
    costs: Mapping[str, LayerCosts],
    slots: Sequence[str],
    budget: Callable[[int], int],
    host_budget: int,
    points: Mapping[str, Sequence[Point]],
) -> list[tuple[int, dict[str, Treatment]]]:
    """Remat of the slots of a chunk at the least time, with activations on the host.

    Args:
        costs: of a layer of each kind.
        slots: the kind of each slot, in their order.
        budget: device memory of a stash unit where no layer offloads more than a number of bytes: copies under way
            take some.
        host_budget: host memory of a stash unit.
        points: the choices of a layer of each kind (`host_points`).

    Returns:
        Runs of slots in their order, (how many, treatment by name).

    Raises:
        NothingFits: not even the least does.
    """
    choices: list[tuple[int, list[tuple[int, dict[str, Treatment]]]]] = []
    refused: list[NothingFits] = []
    for most in sorted({point.host_bytes for few in points.values() for point in few}):
        few = {kind: [point for point in every if point.host_bytes <= most] for kind, every in points.items()}
        try:
            runs = cheapest_of_kinds(costs, slots, budget(most), host_budget, few)
        except NothingFits as error:
            refused.append(error)
            continue
        each = zip(slots, (treatments for layers, treatments in runs for _ in range(layers)), strict=True)
        alike = ((point_of(costs[kind], treatments), own) for (kind, treatments), own in groupby(each))
        choices.append((sum(len(list(own)) * point.picoseconds for point, own in alike), runs))
    if not choices:
        raise min(refused, key=lambda error: error.least_bytes)
    return min(choices, key=lambda choice: choice[0])[1]
