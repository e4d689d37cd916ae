"""From a configuration and a cluster to the front of what layers could keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.remat_front.record import FrontPoint, RematFront
from jaxpar.config import Config
from jaxpar.config.counting import padded_vocab
from jaxpar.config.kinds import ALIKE
from jaxpar.config.plan import Plan
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.memory import pool_bytes
from jaxpar.memory.costs import LayerCosts, Speeds, head_flops, layer_costs, speeds_on
from jaxpar.memory.layer_shape import LayerShape, layer_shape
from jaxpar.memory.pareto import (
    NO_LIMIT,
    NothingFits,
    Point,
    alike_front,
    point_of,
    recomputed_flops,
)
from jaxpar.memory.remat import DEFAULT, PRESETS, Treatment, remat_map
from jaxpar.pipeline.simulate import simulate
from jaxpar.training.auto_remat import ESTIMATED, IN_TRANSIT, cheapest_runs
from jaxpar.training.pipeline import schedule_of
from jaxpar.training.room import Room, memory_room

TRAINING = 3
"""Forward, and a backward of twice the work."""


def make_front(config: Config, cluster: Cluster, name: str) -> RematFront:
    """What the layers of `config` could keep on `cluster`; its own `memory.remat` plays no part.

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

    @property
    def shape(self) -> LayerShape:
        return layer_shape(self.config, self.plan.axes, self.plan.microbatch_rows)

    @property
    def speeds(self) -> Speeds:
        return speeds_on(self.cluster, self.plan.axes, self.plan.dtypes.compute)

    @property
    def layers(self) -> int:
        return max(self.plan.stage_layers)

    def make(self, name: str) -> RematFront:
        costs = layer_costs(self.shape, self.speeds)
        front, host_front = alike_front(costs), alike_front(costs, host_bytes=NO_LIMIT)
        alike = lambda point, name="": self._point(costs, [(self.layers, point.named(costs))], name, front)
        presets = {preset: remat_map(preset, costs.sizes) for preset in PRESETS}
        return RematFront(
            config=name,
            cluster=self.cluster.name,
            gpu=self.cluster.gpu.name,
            gpus_per_host=self.cluster.gpus_per_host,
            devices=self.plan.axes.devices,
            axes=dict(self.plan.axes),
            layers=self.layers,
            chunks=self.plan.virtual_stages,
            microbatches=self.plan.microbatches,
            microbatch_rows=self.plan.microbatch_rows,
            units=self.room.units,
            units_of_ranks=tuple(simulate(schedule_of(self.plan)).peak_in_flight),
            usable_bytes=self.room.usable_bytes,
            parts=dict(self.room.parts),
            room_bytes=self.room.left_bytes,
            step_seconds=self._step_seconds(costs),
            host_bandwidth=costs.host_bandwidth,
            points=tuple(alike(point, _name_of(point.named(costs), presets)) for point in front),
            host_points=tuple(alike(point) for point in host_front),
            presets=tuple(alike(point_of(costs, own), preset) for preset, own in presets.items()),
            cheapest=self._cheapest(costs, front, 0),
            cheapest_with_host=self._cheapest(costs, front, self._host_bytes),
            least_bytes=front[0].device_bytes * self.layers * self.room.units,
            notes=self._notes,
        )

    def _cheapest(self, costs: LayerCosts, front: Sequence[Point], host_bytes: int) -> FrontPoint | None:
        try:
            runs = cheapest_runs(self.room, {ALIKE: costs}, [ALIKE] * self.layers, host_bytes, tuple(costs.sizes))
        except NothingFits:
            return None
        named: list[tuple[int, Mapping[str, Treatment]]] = [
            (run.layers, {name: run.activations[name] for name in costs.sizes}) for run in runs
        ]
        return self._point(costs, named, "", front)

    def _point(
        self,
        costs: LayerCosts,
        runs: Sequence[tuple[int, Mapping[str, Treatment]]],
        name: str,
        front: Sequence[Point],
    ) -> FrontPoint:
        each = [(layers, point_of(costs, own)) for layers, own in runs]
        chunk = sum(layers * point.device_bytes for layers, point in each)
        host = sum(layers * point.host_bytes for layers, point in each)
        again = sum(layers * recomputed_flops(costs, own) for layers, own in runs) / self.layers
        seconds = sum(layers * point.seconds for layers, point in each) / self.layers
        step = TRAINING * (costs.forward_flops + self._head_per_layer)
        triples = {(p.device_bytes, p.picoseconds) for p in front}
        per_step = seconds * self._layers_per_step
        total = chunk * self.room.units
        on_their_way = IN_TRANSIT * max(point.host_bytes for _, point in each)
        return FrontPoint(
            name=name,
            layer_bytes=chunk / self.layers,
            chunk_bytes=chunk,
            total_bytes=total,
            host_bytes=host * self.room.units,
            flops_share=again / step,
            seconds=per_step,
            time_share=per_step / self._step_seconds(costs),
            fits=total + on_their_way <= self.room.left_bytes and host <= self._host_bytes,
            on_front=len(each) == 1 and not host and (each[0][1].device_bytes, each[0][1].picoseconds) in triples,
            runs=tuple((layers, {key: str(value) for key, value in own.items()}) for layers, own in runs),
        )

    @property
    def _host_bytes(self) -> int:
        return self.room.host_unit_bytes(self.cluster.host_limit(self.config.memory.host_limit))

    @property
    def _notes(self) -> tuple[str, ...]:
        tiles = self.config.memory.mlp_tiles or 1
        if tiles == 1:
            return ()
        return (f"memory.mlp_tiles: {tiles} recomputes the feed-forward's hidden activations, whatever is said here",)

    @property
    def _layers_per_step(self) -> float:
        """Layers that a device runs in a step, on average over the pipe ranks."""
        return self.plan.microbatches * sum(self.plan.stage_layers) / self.plan.axes.pipe

    @property
    def _head_per_layer(self) -> float:
        """FLOPs of the head, forward, shared out over the layers of the model."""
        return head_flops(self.shape, padded_vocab(self.config.model)) / sum(self.plan.stage_layers)

    def _step_seconds(self, costs: LayerCosts) -> float:
        layer = costs.forward_seconds + self._head_per_layer / self.speeds.flops
        return TRAINING * layer * self._layers_per_step


def _name_of(treatments: Mapping[str, str], presets: Mapping[str, Mapping[str, str]]) -> str:
    return next((name for name, own in presets.items() if own == treatments), "")
