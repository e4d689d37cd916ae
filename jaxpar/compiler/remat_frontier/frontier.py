"""The Pareto frontier of bytes against time over what layers could keep on a cluster, computed without compiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import groupby

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config
from jaxpar.config.counting import padded_vocab
from jaxpar.config.kinds import kind_counts
from jaxpar.cost.hardware_model import borrowed
from jaxpar.cost.recomputation import head_seconds
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.memory import pool_bytes
from jaxpar.layers.declared import activation_names
from jaxpar.layout.auto_remat import ESTIMATED, IN_TRANSIT, cheapest_runs, costs_of_kinds
from jaxpar.layout.choices.pipeline import layer_order, schedule_of
from jaxpar.layout.memory.room import Room, memory_room
from jaxpar.memory.costs import LayerCosts
from jaxpar.memory.layer_shape import layer_shapes
from jaxpar.memory.pareto import NO_LIMIT, NothingFits, Point, alike_frontiers, point_of
from jaxpar.memory.remat import DEFAULT, PRESETS, Treatment, remat_map
from jaxpar.pipeline.timing.simulate import simulate

type Treatments = Mapping[str, Treatment]


@dataclass(frozen=True)
class FrontierPoint:
    """One choice for all layers, or a mix of two, on one device."""

    name: str
    """Its preset; empty if it is none."""
    layer_bytes: float
    """Kept on the device of one microbatch in one layer; the mean where layers differ."""
    total_bytes: int
    """The same in all layers, of all units in flight."""
    host_bytes: int
    """In the host's memory, of all units in flight, for one device."""
    seconds: float
    """Per step: what runs again, and copies that layers are too short to hide."""
    time_share: float
    """Share of the step's time with nothing recomputed."""
    fits: bool
    """Whether `total_bytes` and the buffers of copies to and from the host fit into what is left for activations."""
    on_front: bool
    """Whether no other choice without host memory has as few bytes and as little time."""
    runs: tuple[tuple[int, dict[str, str]], ...]
    """(layers, what happens to each activation) in the order of a chunk."""
    kinds: dict[str, dict[str, str]] = field(default_factory=dict)
    """The treatment of each activation of the layers of each kind; nothing where layers are alike."""


@dataclass(frozen=True)
class RematFrontier:
    """The frontier of a configuration on a cluster."""

    config: str
    cluster: str
    gpu: str
    gpus_per_host: int
    axes: dict[str, int]
    layers: int
    """The layers of the longest chunk."""
    chunks: int
    """The chunks of a pipe rank."""
    microbatches: int
    microbatch_rows: int
    units: int
    """Microbatches times chunks that a device keeps at the same time: a stash has this many slots on every rank."""
    units_of_ranks: tuple[int, ...]
    """How many of them each pipe rank fills under its schedule."""
    usable_bytes: int
    """Bytes of a device that a program may take."""
    parts: dict[str, int]
    """Bytes of everything but activations."""
    room_bytes: int
    """Bytes left for activations; below 0 where the rest does not fit."""
    step_seconds: float
    """A step with nothing recomputed, without a pipeline's bubble and without transfers of weights."""
    points: tuple[FrontierPoint, ...]
    """The frontier without host memory, all layers of a kind alike, by rising bytes."""
    host_points: tuple[FrontierPoint, ...]
    """The frontier with unlimited host memory."""
    presets: tuple[FrontierPoint, ...]
    cheapest: FrontierPoint | None
    """The least time that fits, with one or two kinds of layers, without host memory; None where nothing fits."""
    cheapest_with_host: FrontierPoint | None
    """The same with host memory."""
    notes: tuple[str, ...] = ()
    """Sentences about what the configuration rules out."""
    way_out: str = ""
    """The nearest settings that fit, in words, where no choice does."""

    @property
    def fits(self) -> bool:
        """Whether some choice fits."""
        return self.cheapest is not None or self.cheapest_with_host is not None


def hull(points: Sequence[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """The lower convex hull of a frontier: chunks with layers of two of its neighbours reach what lies between them."""
    corners: list[FrontierPoint] = []
    for point in points:
        while len(corners) > 1:
            left, middle = corners[-2:]
            rise = (point.seconds - left.seconds) * (middle.total_bytes - left.total_bytes)
            if (middle.seconds - left.seconds) * (point.total_bytes - left.total_bytes) < rise:
                break
            corners.pop()
        corners.append(point)
    return tuple(corners)


def make_frontier(config: Config, cluster: Cluster, name: str) -> RematFrontier:
    """The frontier of what layers of `config` could keep on `cluster`; its `memory.remat` is ignored.

    Raises `UserError` where the configuration is wrong or does not divide over the cluster.
    """
    config, plan = plan_for(without_remat(config), cluster)
    room = memory_room(config, plan, int(ESTIMATED * pool_bytes(cluster.device_bytes)))
    costs, axes, layers = costs_of_kinds(config, cluster), plan.axes, sum(plan.stage_layers)
    slots = tuple(slot.kind for slot in layer_order(plan, config.model).slots)
    shape = next(iter(layer_shapes(config, axes, plan.microbatch_rows).values()))
    head = head_seconds(shape, padded_vocab(config.model), cluster) / layers
    host_bytes = room.host_unit_bytes(cluster.host_limit(config.memory.host_limit))
    layers_of, per_step = kind_counts(config.model), plan.microbatches * layers / axes.pipe
    each = {kind: cost.forward_seconds + cost.backward_seconds for kind, cost in costs.items()}
    step_seconds = (_mean(each, layers_of) + head) * per_step
    chunk = _Chunk(room, costs, slots, layers_of, bool(config.model.kinds), host_bytes, per_step, step_seconds)
    frontier, host_frontier = (alike_frontiers(costs, slots, layers_of, host_bytes=host) for host in (0, NO_LIMIT))
    presets = {preset: {kind: remat_map(preset, cost.sizes) for kind, cost in costs.items()} for preset in PRESETS}
    best = {chunk.sums(points) for points in frontier}

    def alike(points: Mapping[str, Point], *, named: bool) -> FrontierPoint:
        by_kind = {kind: point.named(costs[kind]) for kind, point in points.items()}
        names = (preset for preset, treatments in presets.items() if named and by_kind == treatments)
        return chunk.point([by_kind[kind] for kind in slots], best, next(names, ""))

    tiles, why = config.memory.mlp_tiles or 1, borrowed(cluster.gpu)
    recomputed = f"memory.mlp_tiles: {tiles} always recomputes the feed-forward's hidden activations"
    names = activation_names(config.model)
    return RematFrontier(
        config=name,
        cluster=cluster.name,
        gpu=cluster.gpu.name,
        gpus_per_host=cluster.gpus_per_host,
        axes=dict(axes),
        layers=len(slots),
        chunks=plan.virtual_stages,
        microbatches=plan.microbatches,
        microbatch_rows=plan.microbatch_rows,
        units=room.units,
        units_of_ranks=tuple(simulate(schedule_of(plan)).peak_in_flight),
        usable_bytes=room.usable_bytes,
        parts=dict(room.parts),
        room_bytes=room.left_bytes,
        step_seconds=step_seconds,
        points=tuple(alike(points, named=True) for points in frontier),
        host_points=tuple(alike(points, named=False) for points in host_frontier),
        presets=tuple(
            chunk.point([treatments[kind] for kind in slots], best, preset) for preset, treatments in presets.items()
        ),
        cheapest=chunk.cheapest(best, 0, names),
        cheapest_with_host=chunk.cheapest(best, host_bytes, names),
        notes=(*([recomputed] if tiles > 1 else []), *([f"times: {why}"] if why is not None else [])),
    )


def without_remat(config: Config) -> Config:
    """`config` with the default of `memory.remat`, which a frontier ignores."""
    return replace(config, memory=replace(config.memory, remat=DEFAULT, offload_fraction=0.0))


def _mean(values: Mapping[str, float], layers: Mapping[str, int]) -> float:
    """Mean over layers of a value of each kind."""
    return sum(layers[kind] * value for kind, value in values.items()) / sum(layers.values())


@dataclass(frozen=True)
class _Chunk:
    """The layers of a chunk and their costs."""

    room: Room
    costs: Mapping[str, LayerCosts]
    """Costs of a layer of each kind."""
    slots: tuple[str, ...]
    """The kind of each slot."""
    layers: Mapping[str, int]
    """Layers of each kind in the model."""
    kinds: bool
    """Whether the model declares kinds of layers."""
    host_bytes: int
    """Host memory of a microbatch."""
    per_step: float
    """Layers that a device runs in a step, on average over the pipe ranks."""
    step_seconds: float

    def cheapest(self, best: Set[tuple[int, int]], host_bytes: int, names: Sequence[str]) -> FrontierPoint | None:
        """The choice with the least time that fits; None where nothing fits."""
        try:
            runs = cheapest_runs(self.room, self.costs, self.slots, host_bytes, names)
        except NothingFits:
            return None
        each = (run.activations for run in runs for _ in range(run.layers))
        treated: list[Treatments] = [
            {name: treatments[name] for name in self.costs[kind].sizes}
            for kind, treatments in zip(self.slots, each, strict=True)
        ]
        return self.point(treated, best)

    def point(self, each: Sequence[Treatments], best: Set[tuple[int, int]], name: str = "") -> FrontierPoint:
        """A choice for each slot; `best` are the `sums` of the frontier."""
        slots = list(zip(self.slots, each, strict=True))
        points = [point_of(self.costs[kind], own) for kind, own in slots]
        device, host = sum(point.device_bytes for point in points), sum(point.host_bytes for point in points)
        of_kind = {kind: [p for (k, _), p in zip(slots, points, strict=True) if k == kind] for kind in self.layers}
        means = {kind: sum(point.seconds for point in own) / len(own) for kind, own in of_kind.items()}
        seconds, total = _mean(means, self.layers) * self.per_step, device * self.room.units
        by_kind = dict(slots)
        alike = all(own == by_kind[kind] for kind, own in slots)
        in_transit = IN_TRANSIT * max(point.host_bytes for point in points)
        plain = lambda own: {key: str(value) for key, value in own.items()}
        return FrontierPoint(
            name=name,
            layer_bytes=device / len(slots),
            total_bytes=total,
            host_bytes=host * self.room.units,
            seconds=seconds,
            time_share=seconds / self.step_seconds,
            fits=total + in_transit <= self.room.left_bytes and host <= self.host_bytes,
            on_front=alike and not host and self.sums({kind: own[-1] for kind, own in of_kind.items()}) in best,
            runs=tuple((len(list(group)), plain(own)) for own, group in groupby(each)),
            kinds={kind: plain(own) for kind, own in by_kind.items()} if self.kinds else {},
        )

    def sums(self, each: Mapping[str, Point]) -> tuple[int, int]:
        """Device bytes of a chunk with these choices, and picoseconds of all layers of the model."""
        device = sum(each[kind].device_bytes for kind in self.slots)
        return device, sum(layers * each[kind].picoseconds for kind, layers in self.layers.items())
