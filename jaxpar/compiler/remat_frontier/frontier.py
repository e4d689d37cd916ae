"""The Pareto frontier of bytes against time over what layers could keep on a cluster, computed without compiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config
from jaxpar.config.counting import padded_vocab
from jaxpar.config.kinds import kind_counts
from jaxpar.config.plan import Plan
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

    @property
    def least_bytes(self) -> int:
        """The least bytes of all units in flight without host memory."""
        return self.points[0].total_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def hull(points: tuple[FrontierPoint, ...]) -> tuple[FrontierPoint, ...]:
    """The lower convex hull of a frontier: chunks with layers of two of its neighbours reach what lies between them."""
    corners: list[FrontierPoint] = []
    for point in points:
        while len(corners) > 1 and _above(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    return tuple(corners)


def _above(left: FrontierPoint, middle: FrontierPoint, right: FrontierPoint) -> bool:
    """Whether `middle` lies on the line from `left` to `right`, or above it."""
    rise = (right.seconds - left.seconds) * (middle.total_bytes - left.total_bytes)
    return (middle.seconds - left.seconds) * (right.total_bytes - left.total_bytes) >= rise


def make_frontier(config: Config, cluster: Cluster, name: str) -> RematFrontier:
    """The frontier of what layers of `config` could keep on `cluster`; its `memory.remat` is ignored.

    Raises `UserError` where the configuration is wrong or does not divide over the cluster.
    """
    asked = replace(config, memory=replace(config.memory, remat=DEFAULT, offload_fraction=0.0))
    config, plan = plan_for(asked, cluster)
    room = memory_room(config, plan, int(ESTIMATED * pool_bytes(cluster.device_bytes)))
    return _Maker(config, plan, cluster, room).make(name)


@dataclass(frozen=True)
class _Maker:
    config: Config
    plan: Plan
    cluster: Cluster
    room: Room

    @cached_property
    def costs(self) -> dict[str, LayerCosts]:
        """Costs of a layer of each kind."""
        return costs_of_kinds(self.config, self.cluster)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Layers of each kind."""
        return kind_counts(self.config.model)

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The kind of each slot of a chunk."""
        return tuple(slot.kind for slot in layer_order(self.plan, self.config.model).slots)

    def make(self, name: str) -> RematFrontier:
        frontier, host_frontier = (
            alike_frontiers(self.costs, self.slots, self.counts, host_bytes=host) for host in (0, NO_LIMIT)
        )
        places = {self._sums(each) for each in frontier}
        named = lambda each: {kind: point.named(self.costs[kind]) for kind, point in each.items()}
        alike = lambda own, name="": self._point([own[kind] for kind in self.slots], name, places)
        presets = {
            preset: {kind: remat_map(preset, costs.sizes) for kind, costs in self.costs.items()} for preset in PRESETS
        }
        return RematFrontier(
            config=name,
            cluster=self.cluster.name,
            gpu=self.cluster.gpu.name,
            gpus_per_host=self.cluster.gpus_per_host,
            axes=dict(self.plan.axes),
            layers=len(self.slots),
            chunks=self.plan.virtual_stages,
            microbatches=self.plan.microbatches,
            microbatch_rows=self.plan.microbatch_rows,
            units=self.room.units,
            units_of_ranks=tuple(simulate(schedule_of(self.plan)).peak_in_flight),
            usable_bytes=self.room.usable_bytes,
            parts=dict(self.room.parts),
            room_bytes=self.room.left_bytes,
            step_seconds=self._step_seconds,
            points=tuple(alike(named(each), _name_of(named(each), presets)) for each in frontier),
            host_points=tuple(alike(named(each)) for each in host_frontier),
            presets=tuple(alike(own, preset) for preset, own in presets.items()),
            cheapest=self._cheapest(places, 0),
            cheapest_with_host=self._cheapest(places, self._host_bytes),
            notes=self._notes,
        )

    def _cheapest(self, places: Set[tuple[int, int]], host_bytes: int) -> FrontierPoint | None:
        names = activation_names(self.config.model)
        try:
            runs = cheapest_runs(self.room, self.costs, self.slots, host_bytes, names)
        except NothingFits:
            return None
        each = (run.activations for run in runs for _ in range(run.layers))
        own: list[Treatments] = [
            {name: treatments[name] for name in self.costs[kind].sizes}
            for kind, treatments in zip(self.slots, each, strict=True)
        ]
        return self._point(own, "", places)

    def _point(self, each: Sequence[Treatments], name: str, places: Set[tuple[int, int]]) -> FrontierPoint:
        """A choice for each slot; `places` are the bytes and times of the frontier's, of a chunk."""
        runs = [(own, len(list(group))) for own, group in groupby(zip(self.slots, each, strict=True))]
        found = [(kind, layers, point_of(self.costs[kind], own)) for (kind, own), layers in runs]
        chunk = sum(layers * point.device_bytes for _, layers, point in found)
        host = sum(layers * point.host_bytes for _, layers, point in found)
        seconds = self._mean([(kind, layers, point.seconds) for kind, layers, point in found])
        by_kind = {kind: own for (kind, own), _ in runs}
        alike = all(own == by_kind[kind] for (kind, own), _ in runs)
        per_step = seconds * self._layers_per_step
        total = chunk * self.room.units
        on_their_way = IN_TRANSIT * max(point.host_bytes for _, _, point in found)
        place = self._sums({kind: point for kind, _, point in found})
        plain = lambda own: {key: str(value) for key, value in own.items()}
        return FrontierPoint(
            name=name,
            layer_bytes=chunk / len(self.slots),
            total_bytes=total,
            host_bytes=host * self.room.units,
            seconds=per_step,
            time_share=per_step / self._step_seconds,
            fits=total + on_their_way <= self.room.left_bytes and host <= self._host_bytes,
            on_front=alike and not host and place in places,
            runs=tuple((sum(1 for _ in group), plain(own)) for own, group in groupby(each)),
            kinds={kind: plain(own) for kind, own in by_kind.items()} if self.config.model.kinds else {},
        )

    def _sums(self, each: Mapping[str, Point]) -> tuple[int, int]:
        """Device bytes of a chunk with these choices, and picoseconds of all layers."""
        device = sum(each[kind].device_bytes for kind in self.slots)
        return device, sum(layers * each[kind].picoseconds for kind, layers in self.counts.items())

    def _mean(self, runs: Sequence[tuple[str, int, float]]) -> float:
        """Mean over the model's layers, from (kind, slots, value of a layer); padding slots do not count."""
        counts = self.counts
        sums = {kind: sum(slots * own for of, slots, own in runs if of == kind) for kind in counts}
        means = {kind: own / self.slots.count(kind) for kind, own in sums.items()}
        first, *others = means.values()
        return sum(counts[kind] * own for kind, own in means.items()) / sum(counts.values()) if others else first

    @property
    def _host_bytes(self) -> int:
        return self.room.host_unit_bytes(self.cluster.host_limit(self.config.memory.host_limit))

    @property
    def _notes(self) -> tuple[str, ...]:
        tiles, notes = self.config.memory.mlp_tiles or 1, []
        if tiles > 1:
            notes.append(f"memory.mlp_tiles: {tiles} always recomputes the feed-forward's hidden activations")
        if (why := borrowed(self.cluster.gpu)) is not None:
            notes.append(f"times: {why}")
        return tuple(notes)

    @property
    def _layers_per_step(self) -> float:
        """Layers that a device runs in a step, on average over the pipe ranks."""
        return self.plan.microbatches * sum(self.plan.stage_layers) / self.plan.axes.pipe

    @cached_property
    def _step_seconds(self) -> float:
        shape = next(iter(layer_shapes(self.config, self.plan.axes, self.plan.microbatch_rows).values()))
        head = head_seconds(shape, padded_vocab(self.config.model), self.cluster) / sum(self.plan.stage_layers)
        each = [(kind, self.slots.count(kind), own.forward_seconds + own.backward_seconds)
                for kind, own in self.costs.items()]  # fmt: skip
        return (self._mean(each) + head) * self._layers_per_step


def _name_of(own: Mapping[str, Treatments], presets: Mapping[str, Mapping[str, Treatments]]) -> str:
    return next((name for name, of_preset in presets.items() if own == of_preset), "")
