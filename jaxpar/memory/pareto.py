"""The Pareto frontier of activation bytes against recomputation time, and the cheapest choice under a byte budget.

The choice is, for each named activation of each layer, to save it, to offload it to the host, or to recompute it. The
search is exact:

1. **One layer.** Costs are sums over operations (`costs`), so the frontier of a layer is the Minkowski sum of its
   operations' frontiers, each at most 9 points; dominated sums are dropped after every operation. A point is dominated
   by one with no more device bytes, no more host bytes and no more time. The time that copies to the host cannot
   hide behind the layer only grows with the bytes, so it may be added at the end.
2. **The layers of a chunk.** Each kind of layer is a loop of its own to compile, so a chunk has at most two. All pairs
   of points are tried: for a pair the budgets bound how many layers are of the first kind, time is linear in that
   number, and so the best is at a bound. More kinds could use up the last bytes of a budget: see the tests.

Times are integers inside (picoseconds), so that ties are ties.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.memory.costs import LayerCosts, Recomputation
from jaxpar.memory.remat import LAYER_INPUT, Treatment

PER_SECOND = 10**12
NO_LIMIT = 2**60
"""Bytes: an unlimited budget."""
BLOCK = 512
"""Sums that are compared with the frontier at a time."""
PAIRS = 2**16
"""Pairs of points that are compared at a time."""
_NEVER = np.iinfo(np.int64).max


class NothingFits(UserError):
    """No choice fits the budgets; `least_bytes` is the device memory that one stash unit takes at least."""

    def __init__(self, least_bytes: int, budget_bytes: int):
        super().__init__(
            f"memory.remat: a microbatch in a chunk of layers keeps at least {least_bytes} bytes, whatever is "
            f"recomputed or offloaded, and there are {budget_bytes}"
        )
        self.least_bytes = least_bytes


@dataclass(frozen=True)
class Point:
    """A choice for one layer: what it keeps, per microbatch and device, and what it costs."""

    device_bytes: int
    picoseconds: int
    """Time of recomputation and of copies that are not hidden."""
    host_bytes: int
    treatments: tuple[Treatment, ...]
    """The treatments, in the order of `LayerCosts.sizes`."""

    @property
    def seconds(self) -> float:
        """Seconds of recomputation and exposed copies."""
        return self.picoseconds / PER_SECOND

    def named(self, costs: LayerCosts) -> dict[str, Treatment]:
        """The treatment of each activation, by name."""
        return dict(zip(costs.sizes, self.treatments, strict=True))


def point_of(costs: LayerCosts, treatments: Mapping[str, Treatment]) -> Point:
    """The bytes and the time of one choice."""
    size = lambda wanted: sum(n for name, n in costs.sizes.items() if treatments[name] == wanted)
    again = [one for one in costs.recomputations if any(treatments[name] == "recompute" for name in one.outputs)]
    host = size("offload")
    time = sum(_picoseconds(one.seconds) for one in again) + _exposed(costs, host)
    return Point(size("save"), time, host, tuple(treatments[name] for name in costs.sizes))


def layer_frontier(costs: LayerCosts, *, offload: bool = True) -> list[Point]:
    """All choices of one layer that no other dominates, by increasing device bytes; of equals, one.

    Args:
        costs: of the layer.
        offload: whether there is host memory to use.
    """
    names = tuple(costs.sizes)
    groups = [Recomputation((LAYER_INPUT,), 0.0), *costs.recomputations]
    points: list[tuple[int, int, int, dict[str, Treatment]]] = [(0, 0, 0, {})]
    for group in groups:
        options = list(_options(group, costs.sizes, offload))
        sums = [
            (d + device, t + time, h + host, chosen | added)
            for (d, t, h, chosen), (device, time, host, added) in product(points, options)
        ]
        points = [sums[i] for i in undominated([entry[:3] for entry in sums])]
    exposed = [(d, t + _exposed(costs, h), h, chosen) for d, t, h, chosen in points]
    frontier = [exposed[i] for i in undominated([entry[:3] for entry in exposed])]
    return [Point(d, t, h, tuple(chosen[name] for name in names)) for d, t, h, chosen in frontier]


def cheapest(
    costs: LayerCosts,
    layers: int,
    budget_bytes: int,
    host_budget_bytes: int = 0,
    points: Sequence[Point] | None = None,
) -> list[tuple[int, dict[str, Treatment]]]:
    """Remat of the layers of a chunk so that a stash unit fits its budgets at the least time.

    Args:
        costs: of one layer; the chunk's layers are alike.
        layers: of the chunk.
        budget_bytes: device memory for one stash unit: one microbatch in one chunk.
        host_budget_bytes: host memory for one stash unit; 0 offloads nothing.
        points: the choices of a layer (`layer_frontier`) where they are known.

    Returns:
        One or two runs of layers, (how many, treatment by name). Those that offload more come first, since their
        backward is the last.

    Raises:
        NothingFits: not even the least does; the error has its bytes.
    """
    assert layers > 0, "a chunk has layers"
    if points is None:
        points = layer_frontier(costs, offload=host_budget_bytes > 0)
    device, time, host = (np.array(column, np.int64) for column in zip(*map(_triple, points), strict=True))
    best = _best_pair(device, host, time, layers, budget_bytes, host_budget_bytes)
    if best is None:
        least = _best_pair(device, host, device, layers, NO_LIMIT, host_budget_bytes)
        assert least is not None, "offloading nothing is among the points"
        raise NothingFits(sum(n * points[i].device_bytes for i, n in least), budget_bytes)
    runs = sorted(best, key=lambda run: (-points[run[0]].host_bytes, points[run[0]].device_bytes))
    return [(n, points[i].named(costs)) for i, n in runs]


def cheapest_of_kinds(
    costs: Mapping[str, LayerCosts],
    slots: Sequence[str],
    budget_bytes: int,
    host_budget_bytes: int = 0,
    points: Mapping[str, Sequence[Point]] | None = None,
) -> list[tuple[int, dict[str, Treatment]]]:
    """`cheapest` for a chunk whose slots are of several kinds; all layers of a kind keep the same.

    Args:
        costs: of a layer of each kind.
        slots: the kind of each slot, in their order.
        budget_bytes: see `cheapest`.
        host_budget_bytes: see `cheapest`.
        points: the choices of a layer of each kind, where they are known.

    Returns:
        Runs of slots in their order, (how many, treatment by name).

    Raises:
        NothingFits: not even the least does.
    """
    if points is None:
        points = {kind: layer_frontier(cost, offload=host_budget_bytes > 0) for kind, cost in costs.items()}
    if len(costs) == 1:
        (kind,) = costs
        return cheapest(costs[kind], len(slots), budget_bytes, host_budget_bytes, points[kind])
    layers_of = Counter(slots)
    frontiers = {
        kind: [point for point in points[kind] if layers_of[kind] * point.host_bytes <= host_budget_bytes]
        for kind in costs
    }
    least = sum(layers_of[kind] * min(point.device_bytes for point in frontier) for kind, frontier in frontiers.items())
    *others, last = costs
    sums: list[tuple[int, int, int, tuple[Point, ...]]] = [(0, 0, 0, ())]
    for kind in others:
        n = layers_of[kind]
        more = [
            (d + n * p.device_bytes, t + n * p.picoseconds, h + n * p.host_bytes, (*chosen, p))
            for (d, t, h, chosen), p in product(sums, frontiers[kind])
            if d + n * p.device_bytes <= budget_bytes and h + n * p.host_bytes <= host_budget_bytes
        ]
        sums = [more[i] for i in undominated([entry[:3] for entry in more])] if more else []
    last_sums = layers_of[last] * np.array([_triple(point) for point in frontiers[last]], np.int64)
    best = _best_sum(np.array([entry[:3] for entry in sums], np.int64), last_sums, budget_bytes, host_budget_bytes)
    if best is None:
        raise NothingFits(max(least, budget_bytes + 1), budget_bytes)
    chosen = (*sums[best[0]][3], frontiers[last][best[1]])
    named = {kind: point.named(costs[kind]) for kind, point in zip(costs, chosen, strict=True)}
    return [(1, named[kind]) for kind in slots]


def _best_sum(sums: np.ndarray, others: np.ndarray, budget: int, host_budget: int) -> tuple[int, int] | None:
    """The pair from `sums` and `ends`, (device, time, host) each, with the least total time within both budgets.

    Of equals: the fewest bytes on the host, then on the device. None where nothing fits.
    """
    best: tuple[tuple[int, int, int], tuple[int, int]] | None = None
    for index, (device, time, host) in enumerate(sums):
        fits = np.flatnonzero((others[:, 0] <= budget - device) & (others[:, 2] <= host_budget - host))
        if best is not None:
            fits = fits[others[fits, 1] <= best[0][0] - time]
        if not len(fits):
            continue
        end = fits[np.lexsort((others[fits, 0], others[fits, 2], others[fits, 1]))[0]]
        key = int(time + others[end, 1]), int(host + others[end, 2]), int(device + others[end, 0])
        if best is None or key < best[0]:
            best = key, (index, int(end))
    return None if best is None else best[1]


def _best_pair(
    device: np.ndarray, host: np.ndarray, time: np.ndarray, layers: int, budget: int, host_budget: int
) -> list[tuple[int, int]] | None:
    """(point, layers) of the one or two kinds with the least total `time` within both budgets; None if there are none.

    Of equals: fewest kinds, then fewest bytes offloaded.
    """
    best: tuple[tuple[int, int, int], list[tuple[int, int]]] | None = None
    some = max(1, PAIRS // len(device))
    for begin in range(0, len(device), some):
        # Some points against all: n layers of the first, the rest of the other.
        first = slice(begin, begin + some)
        time_of_first = time[first, None]
        low, high = (
            np.zeros((len(time_of_first), len(device)), np.int64),
            np.full((len(time_of_first), len(device)), layers, np.int64),
        )
        for size, limit in ((device, budget), (host, host_budget)):
            more, room = size[first, None] - size, limit - layers * size
            below, above = np.where(more > 0, more, 1), np.where(more < 0, -more, 1)
            high = np.minimum(high, np.where(more > 0, room // below, np.where((more == 0) & (room < 0), -1, high)))
            low = np.maximum(low, np.where(more < 0, -(room // above), 0))
        fits = low <= high
        if not fits.any():
            continue
        first_layers = np.where(time_of_first < time, high, low)
        total = np.where(fits, first_layers * time_of_first + (layers - first_layers) * time, _NEVER)
        kinds = np.where((first_layers == 0) | (first_layers == layers), 1, 2)
        copied = first_layers * host[first, None] + (layers - first_layers) * host
        least = np.arange(total.size)
        for column in (total, kinds, copied):
            values = column.ravel()[least]
            least = least[values == values.min()]
        i, other = divmod(int(least[0]), len(device))
        key = int(total[i, other]), int(kinds[i, other]), int(copied[i, other])
        if best is None or key < best[0]:
            n = int(first_layers[i, other])
            best = key, [(point, k) for point, k in ((begin + i, n), (other, layers - n)) if k]
    return None if best is None else best[1]


def _options(
    group: Recomputation, sizes: Mapping[str, int], offload: bool
) -> list[tuple[int, int, int, dict[str, Treatment]]]:
    """The treatments of the outputs of one operation: (device bytes, picoseconds, host bytes, treatments).

    If it runs again because one output is not kept, keeping another one would be useless.
    """
    keeps: tuple[Treatment, ...] = ("save", "offload") if offload else ("save",)
    options = []
    for chosen in product(keeps, repeat=len(group.outputs)):
        named = dict(zip(group.outputs, chosen, strict=True))
        size = lambda wanted, named=named: sum(sizes[name] for name, treatment in named.items() if treatment == wanted)
        options.append((size("save"), 0, size("offload"), named))
    if group.outputs != (LAYER_INPUT,):
        again: dict[str, Treatment] = dict.fromkeys(group.outputs, "recompute")
        options.append((0, _picoseconds(group.seconds), 0, again))
    return options


def undominated(triples: Sequence[tuple[int, int, int]]) -> list[int]:
    """The triples that no other one dominates, in increasing order; of equals the first."""
    ordered, index = np.unique(np.array(triples, np.int64), axis=0, return_index=True)
    frontier = np.empty_like(ordered)
    indices: list[int] = []
    # In this order nothing is dominated by a later one, and the first column need not be compared.
    for begin in range(0, len(ordered), BLOCK):
        block = ordered[begin : begin + BLOCK]
        before, before_block = frontier[: len(indices)], len(indices)
        beaten = (before[:, 1] <= block[:, 1, None]) & (before[:, 2] <= block[:, 2, None])
        for i in np.flatnonzero(~beaten.any(axis=1)):
            if not (frontier[before_block : len(indices), 1:] <= block[i, 1:]).all(axis=1).any():
                frontier[len(indices)] = block[i]
                indices.append(int(index[begin + i]))
    return indices


def _triple(point: Point) -> tuple[int, int, int]:
    return point.device_bytes, point.picoseconds, point.host_bytes


def _exposed(costs: LayerCosts, host: int) -> int:
    return _picoseconds(costs.exposed_seconds(host))


def _picoseconds(seconds: float) -> int:
    return round(seconds * PER_SECOND)
