"""Clusters with hosts of several kinds: stages of one kind each, every kind timed on its own GPUs and network.

Tensor ranks stay inside a host, data ranks inside one kind, and pipeline edges alone cross from kind to kind (Holmes,
arXiv:2312.03549). In uniform ticks all ranks wait for the slowest in every tick, which may be one kind for a chunk and
another for the loss: forward, backward, loss and transfer each take as long as on the kind that takes longest for them.

Holmes makes stages as long as their devices are fast. Where chunks are padded to the longest, a stage with fewer layers
takes no less time, and equal stages are best.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from typing import Any

from jaxpar.config.kinds import layer_kinds
from jaxpar.config.schema.model import ModelConfig, Pattern
from jaxpar.cost.hardware_model import HardwareModel, hardware_of
from jaxpar.cost.messages import Network
from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.cluster import Cluster, Group
from jaxpar.model.flops import causal_pairs, flops_per_step
from jaxpar.planner.layout import Layout
from jaxpar.planner.search.stage_groups import Lengths, ranks_of
from jaxpar.planner.step_time.chunks import why_padded
from jaxpar.planner.step_time.layer_times import Layers
from jaxpar.planner.step_time.model import Steps, StepTime, steps_of
from jaxpar.planner.step_time.pipeline import Pieces, Stages, chunk_layers, seconds_of_chunks
from jaxpar.planner.step_time.step import Step
from jaxpar.planner.step_time.ticks import ChunkTime
from jaxpar.planner.step_time.update import Update

PER_LAYER = {"matmuls", "attention", "other", "tensor", "scales"}
"""Parts of a step's time that grow with the number of layers and are not hidden."""


@dataclass(frozen=True)
class StepTimer:
    """Times the steps of one model on one cluster."""

    model: ModelConfig
    sequence_length: int
    global_batch: int
    cluster: Cluster
    hardware: HardwareModel | None
    """What GPUs of the kind `cluster.gpu` reach; None is what was fitted for them."""
    update: Update
    padding: bool = True
    """Whether what pads short chunks is counted, where one program pads them all to the longest."""
    _lengths: dict[Hashable, Lengths | None] = field(default_factory=dict, repr=False, compare=False)
    _made: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def step(self, layout: Layout, networks: Sequence[Network] | None = None) -> StepTime:
        """The predicted step of a layout.

        Args:
            layout: of all devices.
            networks: what messages reach where nodes have been placed, for each of `kinds` (for the cluster where there
                are none).
        """
        kinds = self.kinds(layout)
        if kinds:
            return _Stages(self, layout, kinds, networks).step(layout.stage_layers)
        return self._of_kind(self.model.layers, layout, self.cluster, None if networks is None else networks[0])

    def floor(self, layout: Layout, layers: int | None = None) -> StepTime:
        """A lower bound over its schedules: a pipeline that never waits; of another number of layers, where given."""
        layers = self.model.layers if layers is None else layers
        kinds = self.kinds(layout)
        if not kinds:
            return self._floor(layers, layout, self.cluster)
        if self.model.pattern is not None:  # chunks of the slowest GPUs may have the shortest layers
            each = [self._floor(layers, layout, self._cluster_of(group)) for group in kinds]
            return min(each, key=lambda time: time.seconds)
        if self.padded(layout):  # the slowest part, which all wait for, is no faster than the kind with the slowest GPU
            return self._floor(layers, layout, self._cluster_of(self._named(self.cluster.gpu)))
        return self._free_floor(layers, layout, kinds)

    def _free_floor(self, layers: int, layout: Layout, kinds: Sequence[Group]) -> StepTime:
        """The step if layers, even fractions of one, were spread so that all kinds take equally long: a lower bound.

        The head is that of the fastest GPU, and messages once a step those of the fastest network; in uniform ticks
        those of the slowest rank for as many rows as equal stages have, the fewest that the longest can.
        """
        clusters = [self._cluster_of(group) for group in kinds]
        own = [self._floor(layers, layout, cluster) for cluster in clusters]
        two = [self._floor(2 * layers, layout, cluster) for cluster in clusters]
        works = [
            sum(b.breakdown[name] - a.breakdown[name] for name in PER_LAYER) for a, b in zip(own, two, strict=True)
        ]
        hosts = [group.hosts for group in kinds]
        even = sum(hosts) / sum(number / work for number, work in zip(hosts, works, strict=True))
        fastest = min(range(len(kinds)), key=works.__getitem__)
        least = self._floor(int(layers * even / works[fastest]), layout, clusters[fastest])
        spent = dict(least.breakdown)
        for name in spent.keys() - PER_LAYER:
            spent[name] = min(time.breakdown[name] for time in (*own, least))
        if self.padding:
            once = [{name: time.breakdown[name] for name in ("data", "optimizer")} for time in own]
            spent |= max(once, key=lambda of_kind: sum(of_kind.values()))
        return replace(least, seconds=sum(spent.values()), breakdown=spent)

    def head(self, layout: Layout) -> float | None:
        """Seconds of loss and head of a microbatch where all ranks wait for the slowest; None elsewhere."""
        kinds = self.kinds(layout)
        if not kinds:
            return None
        return max(self.parts(self.model.layers, layout, group).pieces.head for group in kinds)

    def layers(self, layout: Layout) -> Layers:
        """The layers of a layout, on hosts of one kind, and its head."""
        return self._steps(self.model.layers, self.cluster, None).layers(layout)

    def sum_over_stages(self, devices: int, pipe: int, size: float) -> float:
        """Seconds of a sum of `size` bytes over the stages of a pipeline, on hosts of one kind."""
        return self._steps(self.model.layers, self.cluster, None).sum_over_stages(devices, pipe, size)

    def jitter(self, devices: int) -> float:
        """Ratio of the step of so many devices of the cluster to that of one host, from waiting for the slowest."""
        return self._steps(self.model.layers, self.cluster, None).jitter(devices)

    def chunk_times(self, layout: Layout) -> tuple[list[ChunkTime], float, float]:
        """Seconds of a microbatch in each chunk, in the order of the model, in the head and between ranks."""
        kinds = self.kinds(layout)
        parts = [self.parts(self.model.layers, layout, group) for group in kinds or self.cluster.groups]
        of_chunk = _Stages(self, layout, kinds).kind_of if kinds else (0,) * len(ranks_of(layout))
        chunks = [parts[kind].chunks(layout)[number] for number, kind in enumerate(of_chunk)]
        return chunks, max(part.pieces.head for part in parts), max(part.pieces.transfer for part in parts)

    def kinds(self, layout: Layout) -> tuple[Group, ...]:
        """The groups that stages are in, if hosts differ and all stages are of one group each; else none."""
        if layout.pipe == 1 or not self.cluster.is_heterogeneous or layout.tensor > self.cluster.gpus_per_host:
            return ()
        return () if self.cluster.stage_groups(layout.pipe) is None else self.cluster.groups

    def padded(self, layout: Layout) -> bool:
        """Whether short chunks take as long as the longest."""
        return self.padding and self.why_padded(layout) is not None

    def why_padded(self, layout: Layout) -> str | None:
        """Why rows that only pad a chunk take time; None where they are skipped."""
        return why_padded(layout)

    def lengths(self, layout: Layout) -> Lengths | None:
        """Stages in proportion to speed, where that saves time; None for stages as equal as can be.

        The same for layouts that differ only in what they keep: the lengths are those of the first of them.
        """
        kinds = self.kinds(layout)
        if not kinds or self.padded(layout) or self.model.pattern is not None:
            return None
        shape = layout.microbatch, layout.context, layout.context_strategy, layout.tensor
        data = layout.replica, layout.fsdp, layout.expert, layout.zero, layout.optimizer_offload
        key = *shape, *data, layout.schedule, layout.pipe, layout.virtual_stages
        if key not in self._lengths:
            found, _ = _Stages(self, layout, kinds).in_proportion()
            equal = chunk_layers(self.model.layers, len(found))
            self._lengths[key] = None if found == equal else found
        return self._lengths[key]

    def in_proportion(self, layout: Layout) -> tuple[Lengths, StepTime] | None:
        """Stage lengths in proportion to GPU speed, and the step; None where GPUs are alike, or layers are not."""
        kinds = self.kinds(layout)
        return _Stages(self, layout, kinds).in_proportion() if kinds and self.model.pattern is None else None

    def of_kind(self, layers: int, layout: Layout, group: Group, network: Network | None = None) -> StepTime:
        """The step if all hosts were of one kind, for a model of so many layers."""
        return self._of_kind(layers, layout, self._cluster_of(group), network)

    def parts(self, layers: int, layout: Layout, group: Group, network: Network | None = None) -> Step:
        """The parts of that step."""
        return self._steps(layers, self._cluster_of(group), network).step(layout)

    def _of_kind(self, layers: int, layout: Layout, cluster: Cluster, network: Network | None) -> StepTime:
        return self._steps(layers, cluster, network).time(layout)

    def _floor(self, layers: int, layout: Layout, cluster: Cluster) -> StepTime:
        """Like `_of_kind`, for a pipeline in which no rank waits: a lower bound for every schedule, without
        simulation."""
        return self._steps(layers, cluster, None).time(layout, waits=False)

    def _steps(self, layers: int, cluster: Cluster, network: Network | None) -> Steps:
        if network is not None:
            return self._steps_of(layers, cluster, network)
        key = "steps", layers, id(cluster)  # of clusters that this object holds
        if key not in self._made:
            self._made[key] = self._steps_of(layers, cluster, None)
        return self._made[key]

    def _steps_of(self, layers: int, cluster: Cluster, network: Network | None) -> Steps:
        return steps_of(
            self._model_of(layers), self.sequence_length, self.global_batch, cluster,
            self._reached(cluster), self.update, network,
        )  # fmt: skip

    def _model_of(self, layers: int) -> ModelConfig:
        """The same object for equal arguments, so that cached results are found by identity."""
        model = self.model
        if layers not in self._made and model.pattern is not None and layers != model.layers:
            assert layers % model.layers == 0, "kinds in other parts would be another model"
            model = replace(model, pattern=Pattern(layer_kinds(model)))
        if layers not in self._made:
            self._made[layers] = replace(model, layers=layers)
        return self._made[layers]

    def _cluster_of(self, group: Group) -> Cluster:
        """The same object for equal arguments."""
        if group.name not in self._made:
            self._made[group.name] = self.cluster.of_kind(group)
        return self._made[group.name]

    def _named(self, gpu: GPU) -> Group:
        return next(group for group in self.cluster.groups if group.gpu == gpu)

    def reached(self, cluster: Cluster) -> HardwareModel:
        """The hardware parameters of a cluster of one kind."""
        return self._reached(cluster) or hardware_of(cluster.gpu)

    def _reached(self, cluster: Cluster) -> HardwareModel | None:
        return self.hardware if cluster.gpu == self.cluster.gpu else None

    def as_whole(self, time: StepTime) -> StepTime:
        """`time`, of one kind and another number of layers, with the MFU of the model on the cluster."""
        assert self.model.vocab is not None, "the vocabulary is known before a step is predicted"
        tokens = self.global_batch * self.sequence_length
        pairs = causal_pairs(self.model, tokens, self.sequence_length)
        flops = flops_per_step(self.model, tokens, pairs, self.model.vocab)
        devices = self.cluster.devices
        return replace(time, mfu=flops / (time.seconds * devices * self.cluster.training_peak))


class _Stages:
    """The stages of one layout."""

    def __init__(
        self, timer: StepTimer, layout: Layout, kinds: Sequence[Group], networks: Sequence[Network] | None = None
    ):
        self.timer, self.layout, self.kinds, self.networks = timer, layout, kinds, networks
        self.times: dict[tuple[int, int], StepTime] = {}
        """By kind and layers of its longest chunk."""

    @cached_property
    def kind_of(self) -> tuple[int, ...]:
        """The kind of each chunk, in the order of the model."""
        groups = self.timer.cluster.stage_groups(self.layout.pipe)
        assert groups is not None, "a stage is of one group"
        of_rank = [self.timer.cluster.groups.index(group) for group in groups]
        return tuple(of_rank[rank] for rank in ranks_of(self.layout))

    def step(self, lengths: Lengths | None = None) -> StepTime:
        """The step of the slowest kind, which all wait for."""
        if self.timer.model.pattern is not None:
            return max(self._of_unlike_layers(), key=lambda time: time.seconds)
        lengths = chunk_layers(self.timer.model.layers, len(self.kind_of)) if lengths is None else lengths
        return self.timer.as_whole(max(self.of_kinds(lengths), key=lambda time: time.seconds))

    def of_kinds(self, lengths: Lengths) -> list[StepTime]:
        """The step of each kind with its longest chunk; where padded, with the longest of all."""
        longest = [max(lengths)] * len(self.kinds)
        if not self.timer.padded(self.layout):
            longest = [self._longest(lengths, kind) for kind in range(len(self.kinds))]
        # Rows that pad are left out of ticks; in what comes once a step, messages and the update, they take part.
        padded = max(lengths)
        parts = [self._parts(kind, layers) for kind, layers in enumerate(longest)]
        makespan = self._makespan([part.pieces for part in parts], longest)
        found = []
        for kind, part in enumerate(parts):
            once = self._parts(kind, padded).once if self.timer.padding else part.once
            found.append(self._within(makespan, part, once))
        return found

    def _of_unlike_layers(self) -> list[StepTime]:
        """The step of each kind of hosts for a model whose layers are of several kinds, in equal stages."""
        timer, networks = self.timer, self.networks or [None] * len(self.kinds)
        each = zip(self.kinds, networks, strict=True)
        parts = [timer.parts(timer.model.layers, self.layout, group, network) for group, network in each]
        chunks = [parts[kind].chunks(self.layout)[number] for number, kind in enumerate(self.kind_of)]
        makespan = self._seconds_of(chunks, [part.pieces for part in parts])
        return [timer.as_whole(self._within(makespan, part, part.once)) for part in parts]

    def _within(self, makespan: float, part: Step, once: Mapping[str, float]) -> StepTime:
        """A step of `part` in a pipeline that takes so long, with `once` for what comes once a step."""
        stragglers = makespan * (part.jitter - 1)
        spent = {**part.spent, "bubble": makespan - part.ideal, "stragglers": stragglers}
        spent |= {name: spent[name] + once[name] - part.once[name] for name in once}
        seconds = sum(spent.values())
        tokens = self.timer.global_batch * self.timer.sequence_length / seconds / self.layout.devices
        return StepTime(seconds, spent, tokens, 0.0)

    def _makespan(self, pieces: Sequence[Pieces], longest: Sequence[int]) -> float:
        """Seconds of a pipeline in which all wait for the slowest rank, for each kind of work."""
        return self._seconds_of([each.chunk(layers) for each, layers in zip(pieces, longest, strict=True)], pieces)

    def _seconds_of(self, chunks: Sequence[ChunkTime], pieces: Sequence[Pieces]) -> float:
        """Seconds of a pipeline of such chunks, with the slowest head and transfers."""
        layout, timer = self.layout, self.timer
        stages = Stages(
            layout.schedule, layout.pipe, max(1, layout.microbatches(timer.global_batch)), layout.virtual_stages
        )
        head, transfer = max(piece.head for piece in pieces), max(piece.transfer for piece in pieces)
        return seconds_of_chunks(stages, chunks, head, transfer)

    def in_proportion(self) -> tuple[Lengths, StepTime]:
        """Lengths by the speed of each kind's layers; then layers move away from the slowest stage while that helps."""
        equal = chunk_layers(self.timer.model.layers, len(self.kind_of))
        each = max(equal)
        speeds = [1 / (self._time(k, 2 * each).seconds - self._time(k, each).seconds) for k in range(len(self.kinds))]
        if max(speeds) == min(speeds):
            return equal, self.step(equal)
        lengths = stage_lengths(self.timer.model.layers, [speeds[kind] for kind in self.kind_of])
        while True:
            better = min(self._moved(lengths), key=self._seconds, default=lengths)
            if self._seconds(better) >= self._seconds(lengths):
                break
            lengths = better
        lengths = min(equal, lengths, key=self._seconds)
        return lengths, self.step(lengths)

    def _seconds(self, lengths: Lengths) -> float:
        return max(time.seconds for time in self.of_kinds(lengths))

    def _moved(self, lengths: Lengths) -> list[Lengths]:
        """A layer of each of the longest chunks of a kind, given to the shortest chunks of another."""
        found = []
        for kind, other in permutations(range(len(self.kinds)), 2):
            top = self._longest(lengths, kind)
            if top == 1:
                continue
            new = list(lengths)
            for giver in (c for c, own in enumerate(self.kind_of) if own == kind and lengths[c] == top):
                new[giver] -= 1
                new[min((c for c, own in enumerate(self.kind_of) if own == other), key=new.__getitem__)] += 1
            found.append(tuple(new))
        return found

    def _longest(self, lengths: Lengths, kind: int) -> int:
        return max(length for length, own in zip(lengths, self.kind_of, strict=True) if own == kind)

    def _time(self, kind: int, layers: int) -> StepTime:
        """The step if all chunks were of this kind and so long."""
        key = kind, layers
        if key not in self.times:
            network = None if self.networks is None else self.networks[kind]
            layout = self.layout.first_layers(layers)
            self.times[key] = self.timer.of_kind(layers * len(self.kind_of), layout, self.kinds[kind], network)
        return self.times[key]

    def _parts(self, kind: int, layers: int) -> Step:
        """The parts of that."""
        network = None if self.networks is None else self.networks[kind]
        layout = self.layout.first_layers(layers)
        return self.timer.parts(layers * len(self.kind_of), layout, self.kinds[kind], network)


def stage_lengths(layers: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Layers of each stage in proportion to the speed of its devices (Holmes, arXiv:2312.03549), at least one each.

    Rounded so that the slowest stage is as fast as whole layers allow: the next layer goes where it ends first.
    """
    assert layers >= len(speeds), "every stage has a layer"
    found = [1] * len(speeds)
    for _ in range(layers - len(speeds)):
        next_stage = min(range(len(speeds)), key=lambda stage: (found[stage] + 1) / speeds[stage])
        found[next_stage] += 1
    return tuple(found)
