"""Clusters with hosts of several kinds: stages of one kind each, every kind timed on its own GPUs and network.

Tensor ranks stay inside a host, data ranks inside one kind, and pipeline edges alone cross from kind to kind (Holmes,
arXiv:2312.03549). In uniform ticks all ranks wait for the slowest in every tick, which may be one kind for a chunk and
another for the loss: forward, backward, loss and transfer each take as long as on the kind that takes longest for them.

Holmes makes stages as long as their devices are fast. Where chunks are padded to the longest, a stage with fewer layers
takes no less time, and equal stages are best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from jaxpar.config.schema.model import ModelConfig
from jaxpar.cost.hardware_model import HardwareModel, hardware_of
from jaxpar.cost.layout import Layout
from jaxpar.cost.messages import Network
from jaxpar.hardware.cluster import Cluster, Group
from jaxpar.layout.choices.pipeline import even_chunks
from jaxpar.planner.memo import Memo
from jaxpar.planner.search.stage_groups import Lengths, ranks_of
from jaxpar.planner.step_time.chunks import chunk_lengths, why_padded
from jaxpar.planner.step_time.model import Steps, StepTime
from jaxpar.planner.step_time.pipeline import Chunk, run_pipeline
from jaxpar.planner.step_time.step import Step
from jaxpar.planner.step_time.update import Update
from jaxpar.trace.parts import Run

type Spent = tuple[Mapping[str, float], Run]
"""A step by part, and its program."""

PER_LAYER = ("matmuls", "attention", "other", "tensor", "scales")
"""Parts of a step's time that grow with the number of layers and are not hidden."""


@dataclass(frozen=True)
class StepTimer:
    """Times the steps of one model on one cluster."""

    model: ModelConfig
    sequence_length: int
    global_batch: int
    cluster: Cluster
    hardware: HardwareModel | None
    """Shares that GPUs of the kind `cluster.gpu` reach; None is those that were fitted for them."""
    update: Update
    _known: Memo = field(default_factory=Memo, repr=False, compare=False)

    def step(self, layout: Layout, networks: Sequence[Network] | None = None) -> StepTime:
        """The predicted step of a layout.

        Args:
            layout: of all devices.
            networks: what messages reach where nodes have been placed, for each of `kinds` (for the cluster where there
                are none).
        """
        if kinds := self.kinds(layout):
            return _Stages(self, layout, kinds, networks).step()
        return self.steps(network=None if networks is None else networks[0]).time(layout)

    def floor(self, layout: Layout) -> dict[str, float]:
        """Seconds by part of a lower bound over its schedules: a pipeline that never waits.

        Where hosts differ, that of the slowest kind if all chunks are as long as the longest, and else of the fastest
        with as many layers more as the others take longer, the head aside: no lengths of stages are faster.
        """
        kinds = self.kinds(layout)
        if not kinds:
            return self.steps().floor(layout)
        times = [self.steps(group=kind).floor(layout) for kind in kinds]
        fast = min(times, key=_total)
        if self.model.pattern is not None:  # chunks of the slowest GPUs may have the shortest layers
            return fast
        if why_padded(layout) is not None and self.model.layers % len(ranks_of(layout)) == 0:
            return max(times, key=_total)
        heads = [self.steps(group=kind).layers(layout).head(1).seconds for kind in kinds]
        microbatches = layout.microbatches(self.global_batch)
        sums = [sum(time[name] for name in PER_LAYER) for time in times]
        works = [work - microbatches * head / layout.pipe for work, head in zip(sums, heads, strict=True)]
        hosts = [kind.hosts for kind in kinds]
        even = sum(hosts) / sum(number / work for number, work in zip(hosts, works, strict=True))
        scale = even / sums[times.index(fast)]
        spent = {name: min(time[name] for time in times) for name in fast}
        return spent | {name: scale * fast[name] for name in PER_LAYER}

    def steps(self, group: Group | None = None, network: Network | None = None) -> Steps:
        """The steps of the model if all hosts were of one group; None for all hosts."""
        cluster = self.cluster
        if group is not None:
            cluster = self._known.of(group.name, lambda: self.cluster.uniform(group))
        sizes = self.model, self.sequence_length, self.global_batch
        made = lambda: Steps(*sizes, cluster, self.reached(cluster), self.update, network)
        return made() if network is not None else self._known.of((Steps, group and group.name), made)

    def chunk_times(self, layout: Layout) -> tuple[list[Chunk], float, float]:
        """Seconds of a microbatch in each chunk, in the order of the model, in the head and between ranks."""
        kinds = self.kinds(layout)
        parts = [self.steps(group=kind).step(layout) for kind in (kinds or [None])]
        if kinds:
            chunks = _Stages(self, layout, kinds).chunks(layout, parts)
        else:
            chunks = list(parts[0].chunks(layout))
        return chunks, max(part.pieces.head.seconds for part in parts), max(part.pieces.transfer for part in parts)

    def kinds(self, layout: Layout) -> tuple[Group, ...]:
        """The groups that stages are in, if hosts differ and all stages are of one group each; else none."""
        if layout.pipe == 1 or not self.cluster.is_heterogeneous or layout.tensor > self.cluster.gpus_per_host:
            return ()
        return () if self.cluster.stage_groups(layout.pipe) is None else self.cluster.groups

    def lengths(self, layout: Layout) -> Lengths | None:
        """Stages in proportion to speed, where that saves time; None for stages as equal as can be.

        The same for layouts that differ only in what they keep: the lengths are those of the first of them.
        """
        kinds = self.kinds(layout)
        if not kinds or why_padded(layout) is not None or self.model.pattern is not None:
            return None
        key = replace(layout, remat="none", offload_fraction=0.0, resident_state=0.0)
        chunks = self._known.of(key, lambda: _Stages(self, layout, kinds).in_proportion())
        return None if chunks == even_chunks(self.model.layers, len(chunks)) else chunks

    def reached(self, cluster: Cluster) -> HardwareModel:
        """The hardware parameters of a cluster of one kind."""
        known = self.hardware if cluster.gpu == self.cluster.gpu else None
        return known or hardware_of(cluster.gpu)


class _Stages:
    """The stages of one layout."""

    def __init__(
        self, timer: StepTimer, layout: Layout, kinds: Sequence[Group], networks: Sequence[Network] | None = None
    ):
        self.timer, self.layout, self.kinds = timer, layout, kinds
        self.steps = [
            timer.steps(group, network) for group, network in zip(kinds, networks or [None] * len(kinds), strict=True)
        ]

    @cached_property
    def kind_of(self) -> tuple[int, ...]:
        """The kind of each chunk, in the order of the model."""
        groups = self.timer.cluster.stage_groups(self.layout.pipe)
        assert groups is not None, "a stage is of one group"
        of_rank = [self.timer.cluster.groups.index(group) for group in groups]
        return tuple(of_rank[rank] for rank in ranks_of(self.layout))

    def step(self) -> StepTime:
        """The step of the slowest kind, which all wait for."""
        layout = replace(self.layout, stage_layers=chunk_lengths(self.timer.model, self.layout))
        slowest = max(self.of_kinds(layout), key=lambda of_kind: _total(of_kind[0]))
        return self.timer.steps().priced(*slowest, layout.devices)

    def chunks(self, layout: Layout, parts: Sequence[Step]) -> list[Chunk]:
        """Each chunk on its kind of hosts, in the order of the model."""
        of_kinds = [part.chunks(layout) for part in parts]
        return [of_kinds[kind][index] for index, kind in enumerate(self.kind_of)]

    def of_kinds(self, layout: Layout) -> list[Spent]:
        """The step of each kind, with the slowest chunks, head and transfers; its work is that of its longest chunks.

        Rows that pad are left out of ticks; in what comes once a step, messages and the update, they take part.
        """
        parts = [steps.step(layout) for steps in self.steps]
        chunks, took = self.chunks(layout, parts), lambda chunk: chunk.forward.seconds + chunk.backward.seconds
        pipeline = run_pipeline(layout, parts[0].microbatches, chunks, [part.pieces for part in parts])
        of_kind = lambda kind: (chunk for chunk, own in zip(chunks, self.kind_of, strict=True) if own == kind)
        return [
            (part.spent_in(layout, pipeline, max(of_kind(kind), key=took)), part.program(pipeline))
            for kind, part in enumerate(parts)
        ]

    def in_proportion(self) -> Lengths:
        """Lengths by the speed of each kind's layers, or equal ones if those are faster."""
        equal = even_chunks(self.timer.model.layers, len(self.kind_of))
        layers = [steps.step(self.layout).pieces.layer for steps in self.steps]
        speeds = [1 / (layer.forward.seconds + layer.backward.seconds) for layer in layers]
        if max(speeds) == min(speeds):
            return equal
        lengths = stage_lengths(self.timer.model.layers, [speeds[kind] for kind in self.kind_of])
        return min(equal, lengths, key=self._seconds)

    def _seconds(self, lengths: Lengths) -> float:
        layout = replace(self.layout, stage_layers=lengths)
        return max(_total(spent) for spent, _ in self.of_kinds(layout))


def _total(spent: Mapping[str, float]) -> float:
    return sum(spent.values())


def stage_lengths(layers: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Layers of each stage in proportion to the speed of its devices (Holmes, arXiv:2312.03549), at least one each.

    Rounded so that the slowest stage is as fast as whole layers allow: the next layer goes where it ends first.
    """
    assert layers >= len(speeds), "every stage has a layer"
    chunks = [1] * len(speeds)
    for _ in range(layers - len(speeds)):
        next_stage = min(range(len(speeds)), key=lambda stage: (chunks[stage] + 1) / speeds[stage])
        chunks[next_stage] += 1
    return tuple(chunks)
