"""Computes the frontier of what layers could keep, for a configuration and a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.remat_frontier.record import FrontierPoint, RematFrontier
from jaxpar.config import Config
from jaxpar.config.counting import padded_vocab
from jaxpar.config.kinds import kind_counts
from jaxpar.config.plan import Plan
from jaxpar.cost.hardware_model import borrowed
from jaxpar.cost.recomputation import head_flops, head_seconds
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.memory import pool_bytes
from jaxpar.layers.declared import activation_names
from jaxpar.layout.auto_remat import ESTIMATED, IN_TRANSIT, cheapest_runs
from jaxpar.layout.choices.pipeline import layer_order, schedule_of
from jaxpar.layout.layer_costs import costs_of_kinds
from jaxpar.layout.memory.room import Room, memory_room
from jaxpar.memory.costs import LayerCosts
from jaxpar.memory.layer_shape import LayerShape, layer_shapes
from jaxpar.memory.pareto import (
    NO_LIMIT,
    NothingFits,
    Point,
    alike_frontiers,
    point_of,
    recomputed_flops,
)
from jaxpar.memory.remat import DEFAULT, PRESETS, Treatment, remat_map
from jaxpar.pipeline.timing.simulate import simulate

TRAINING = 3
"""Work of a step in forwards: one forward, and a backward of twice the work."""


def make_frontier(config: Config, cluster: Cluster, name: str) -> RematFrontier:
    """The frontier of what layers of `config` could keep on `cluster`; its own `memory.remat` is ignored.

    Raises `UserError` where the configuration is wrong or does not divide over the cluster.
    """
    asked = replace(config, memory=replace(config.memory, remat=DEFAULT, offload_fraction=0.0))
    config, plan = plan_for(asked, cluster)
    room = memory_room(config, plan, int(ESTIMATED * pool_bytes(cluster.device_bytes)))
    return _Maker(config, plan, cluster, room).make(name)


type Treatments = Mapping[str, Treatment]


@dataclass(frozen=True)
class _Maker:
    config: Config
    plan: Plan
    cluster: Cluster
    room: Room

    @cached_property
    def shapes(self) -> dict[str, LayerShape]:
        return layer_shapes(self.config, self.plan.axes, self.plan.microbatch_rows)

    @cached_property
    def costs(self) -> dict[str, LayerCosts]:
        """Of a layer of each kind."""
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
        least = sum(frontier[0][kind].device_bytes for kind in self.slots)
        return RematFrontier(
            config=name,
            cluster=self.cluster.name,
            gpu=self.cluster.gpu.name,
            gpus_per_host=self.cluster.gpus_per_host,
            devices=self.plan.axes.devices,
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
            host_bandwidth=next(iter(self.costs.values())).host_bandwidth,
            points=tuple(alike(named(each), _name_of(named(each), presets)) for each in frontier),
            host_points=tuple(alike(named(each)) for each in host_frontier),
            presets=tuple(alike(own, preset) for preset, own in presets.items()),
            cheapest=self._cheapest(places, 0),
            cheapest_with_host=self._cheapest(places, self._host_bytes),
            least_bytes=least * self.room.units,
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
        again = self._mean([(kind, n, recomputed_flops(self.costs[kind], own)) for (kind, own), n in runs])
        seconds = self._mean([(kind, layers, point.seconds) for kind, layers, point in found])
        step = TRAINING * (self._per_layer("forward_flops") + self._head_per_layer)
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
            chunk_bytes=chunk,
            total_bytes=total,
            host_bytes=host * self.room.units,
            flops_share=again / step,
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

    def _per_layer(self, field: str) -> float:
        """Of `LayerCosts`, for a layer of the model."""
        return self._mean([(kind, self.slots.count(kind), getattr(own, field)) for kind, own in self.costs.items()])

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

    @property
    def _head_per_layer(self) -> float:
        """FLOPs of the head, forward, shared out over the layers of the model."""
        shape = next(iter(self.shapes.values()))
        return head_flops(shape, padded_vocab(self.config.model)) / sum(self.plan.stage_layers)

    @cached_property
    def _step_seconds(self) -> float:
        shape = next(iter(self.shapes.values()))
        head = head_seconds(shape, padded_vocab(self.config.model), self.cluster) / sum(self.plan.stage_layers)
        layer = self._per_layer("forward_seconds") + self._per_layer("backward_seconds")
        return (layer + head) * self._layers_per_step


def _name_of(own: Mapping[str, Treatments], presets: Mapping[str, Mapping[str, Treatments]]) -> str:
    return next((name for name, of_preset in presets.items() if own == of_preset), "")
