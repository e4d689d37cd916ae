"""A step's time on one cluster: what does not depend on the schedule is computed once for layouts that share it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, log2

from jaxpar.config.kinds import kind_models
from jaxpar.config.schema import ModelConfig
from jaxpar.cost.hardware_model import HardwareModel, hardware_of
from jaxpar.cost.mechanisms import Mechanisms
from jaxpar.cost.messages import Network, Ring, network_of, overlapped
from jaxpar.cost.operations import device_of
from jaxpar.cost.wire_messages import WireMessages
from jaxpar.hardware.cluster import Cluster
from jaxpar.layout.choices.replica_sums import only_after
from jaxpar.mesh.wire.wire import Wire, secondary_ranks
from jaxpar.model.flops import causal_pairs, flops_per_step
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.chunks import GATHERED, Kinds, chunk_lengths, chunk_slots, kinds_of_slots, why_padded
from jaxpar.planner.step_time.layer_times import Layers, Passed, Sort, sorts_of
from jaxpar.planner.step_time.pipeline import ChunkTime, Pieces, Stages, pipeline_seconds, seconds_of_chunks
from jaxpar.planner.step_time.update import Update
from jaxpar.planner.step_time.weight_traffic import (
    IN_TICKS,
    REPLICA_SUMS,
    as_executed,
    held_seconds,
    holds_chunks,
    reduces_with_weights,
)  # fmt: skip

MASTER = 4.0
"""Bytes of a master weight, which is read for the largest magnitude of a matrix that becomes codes."""


@dataclass(frozen=True)
class StepTime:
    """A predicted step."""

    seconds: float
    breakdown: Mapping[str, float]
    """Seconds by part, on the slowest rank; they add up to `seconds`."""
    tokens_per_s_per_gpu: float
    mfu: float
    """Share of the dense 16-bit peak, with the project's definition (`model.flops`)."""


class Steps:
    """Steps of one model on one cluster; caches what layouts have in common."""

    def __init__(
        self, model: ModelConfig, sequence: int, batch: int, cluster: Cluster, does: Mechanisms,
        hardware: HardwareModel | None, update: Update, network: Network | None = None,
    ):  # fmt: skip
        assert model.vocab is not None, "the vocabulary is known before a step is predicted"
        self.model, self.sequence, self.batch, self.vocab = model, sequence, batch, model.vocab
        self.cluster, self.does, self.update = cluster, does, update
        self.hardware = hardware_of(cluster.gpu) if hardware is None else hardware
        self.device = device_of(cluster.gpu, self.hardware)
        self.network = network_of(cluster, self.hardware) if network is None else network
        self._layers: dict[tuple[object, ...], Layers] = {}
        self._rings: dict[tuple[int, int, bool], Ring] = {}
        self._messages: dict[tuple[Wire, int, int, float], WireMessages] = {}
        self._steps: dict[tuple[object, ...], Step] = {}
        tokens = batch * sequence
        self._flops = flops_per_step(model, tokens, causal_pairs(model, tokens, sequence), self.vocab, update.lora)
        self._peak = cluster.training_peak
        self._routes = any(own.experts is not None for own in kind_models(model).values())
        self._per_host, self._host_bandwidth = cluster.gpus_per_host, cluster.host_bandwidth

    def time(self, layout: Layout, *, waits: bool = True) -> StepTime:
        """The step of a layout; with `waits` false, of a pipeline in which no rank ever waits."""
        spent = self.step(layout).spent_in(layout, waits)
        seconds = sum(spent.values())
        devices = layout.devices
        return StepTime(
            seconds=seconds,
            breakdown=spent,
            tokens_per_s_per_gpu=self.batch * self.sequence / seconds / devices,
            mfu=self._flops / (seconds * devices * self._peak),
        )

    def step(self, layout: Layout) -> Step:
        """The parts of the step of a layout, shared by layouts that differ in the schedule alone."""
        key = (
            layout.pipe, layout.replica, layout.fsdp, layout.expert, layout.context, layout.tensor, layout.microbatch,
            layout.zero, layout.context_strategy, layout.remat, layout.offload_fraction, layout.optimizer_offload,
            layout.sequence_parallel, layout.precision, layout.wire, kinds_of_slots(self.model, layout),
            layout.expert_exchange, layout.expert_capacity, layout.imbalance, layout.expert_slices,
            layout.exchange_wire, layout.expert_codes, layout.matmul_codes, layout.attention, layout.sums_early,
            self._held_rows(layout),
            reduces_with_weights(layout, self.does),
        )  # fmt: skip
        if key not in self._steps:
            self._steps[key] = Step(self, layout)
        return self._steps[key]

    def _held_rows(self, layout: Layout) -> tuple[int, int]:
        """Virtual stages and the rows of each, of chunks that are held whole; none where they are not."""
        if not (as_executed(layout, self.does) and holds_chunks(layout)):
            return 0, 0
        return layout.virtual_stages, max(chunk_lengths(self.model, layout))

    def layers(self, layout: Layout) -> Layers:
        """The layers of a layout, and its head."""
        key = (
            layout.microbatch, layout.tensor, layout.context, layout.context_strategy, layout.sequence_parallel,
            layout.precision, self.expert_of(layout), layout.expert_exchange, layout.expert_capacity, layout.imbalance,
            layout.expert_slices, layout.exchange_wire, layout.expert_codes, layout.matmul_codes,
            layout.attention, None if layout.matmul_codes is None else layout.devices // layout.pipe,
        )  # fmt: skip
        if key not in self._layers:
            self._layers[key] = Layers(
                self.model,
                self.sequence,
                replace(layout, expert=self.expert_of(layout)),
                self.device,
                self.network,
                self.does,
                self.update.lora,
            )
        return self._layers[key]

    def expert_of(self, layout: Layout) -> int:
        """Ranks that share the experts; for a model without experts the axis is data parallelism."""
        return layout.expert if self._routes else 1

    def ring(self, ranks: int, stride: int, shared: bool = True) -> Ring:
        """Like `Network.ring`."""
        key = ranks, stride, shared
        if key not in self._rings:
            self._rings[key] = self.network.ring(*key)
        return self._rings[key]

    def messages(self, wire: Wire, ranks: int, stride: int, item: float) -> WireMessages:
        """Messages of weights and gradients over so many ranks; `item` is the bytes of a stored weight."""
        key = wire, ranks, stride, item
        if key not in self._messages:
            gradient = 4.0 if self.does.gradient_type == "float32" else 2.0
            own = WireMessages(self.network, wire, ranks, stride, item, gradient, self.does.shared_cards)
            self._messages[key] = own
        return self._messages[key]

    def jitter(self, devices: int) -> float:
        """Ratio of the step of so many devices to that of one host, from waiting for the slowest host."""
        return 1 + self.hardware.host_jitter * log2(max(1.0, devices / self._per_host))

    @property
    def host_bandwidth(self) -> float:
        """Bytes per second between a GPU and its host's memory."""
        return self._host_bandwidth


class Step:
    """The parts of a step's time."""

    def __init__(self, where: Steps, layout: Layout):
        self.where, self.layout = where, layout
        self.model, self.vocab, self.does, self.update = where.model, where.vocab, where.does, where.update
        self.hardware, self.device, self.network = where.hardware, where.device, where.network
        self.microbatches = max(1, layout.microbatches(where.batch))
        self.layers = where.layers(layout)
        self.case = self.layers.case
        self.executed = as_executed(layout, self.does)
        self.holds = self.executed and holds_chunks(layout)
        self.slots: Kinds = kinds_of_slots(where.model, layout)
        """The kind of each; none where all layers are alike."""
        self.unlike = layout.matmul_codes is not None and any(layout.matmul_codes.exact)
        """Whether some layers multiply in FP8 and others do not."""
        again = self.layers.again(layout.remat, self.slots)
        self.again = self.layers.mean(again)
        shards = layout.fsdp * layout.expert * layout.context
        self.shards = self._messages(shards, layout.tensor)
        self.data = self._messages(layout.data * layout.context, layout.tensor)
        self.replicas = self._messages(layout.replica, shards * layout.tensor)
        # Experts lie over `expert`, and their gradients are summed over the other data ranks only.
        apart = layout.expert * layout.tensor
        wire = self._expert_wire()
        self.expert_shards = self._messages(layout.fsdp * layout.context, apart, wire)
        self.expert_data = self._messages(layout.replica * layout.fsdp * layout.context, apart, wire)
        self.jitter = where.jitter(layout.devices)
        self.spent: dict[str, float] = {}
        """Seconds by part, without the bubble and the wait for the slowest host."""
        self.once: dict[str, float] = {}
        """The part of it that comes once a step, after the pipeline."""
        self.passed = {sort: self._passed(sort, work.seconds, work.kernels) for sort, work in again.items()}
        """A layer of each sort."""
        self._microbatches(self.spent)
        self._after(self.spent)

    def _messages(self, ranks: int, stride: int, wire: Wire | None = None) -> WireMessages:
        """Messages of weights and gradients over so many ranks; those of `wire`, or as the layout's matrices travel."""
        wire = self.layout.wire if wire is None else wire
        return self.where.messages(wire, ranks, stride, float(self.case.item))

    def _expert_wire(self) -> Wire:
        """How weights of experts travel: their secondary shard has the neighbours that share an expert, if any."""
        layout, wire = self.layout, self.layout.wire
        sizes = {"fsdp": layout.fsdp, "expert": layout.expert, "context": layout.context}
        secondary = secondary_ranks(wire.secondary, sizes, ("expert",))
        assert secondary is not None, "neighbours that are whole ranks of an axis"
        return replace(wire, secondary=secondary)

    def spent_in(self, layout: Layout, waits: bool) -> dict[str, float]:
        """All seconds, in the schedule of `layout`."""
        makespan = self.ideal
        if layout.pipe > 1 and waits:
            stages = Stages(
                layout.schedule, layout.pipe, self.microbatches, layout.virtual_stages, self.model.layers,
                self.does.lockstep, self.does.overlap_pipe,
            )  # fmt: skip
            makespan = (
                seconds_of_chunks(stages, self.chunks(layout), self.pieces.head, self.pieces.transfer)
                if self.slots or self.unlike
                else pipeline_seconds(stages, self.pieces)
            )
        return {**self.spent, "bubble": makespan - self.ideal, "stragglers": makespan * (self.jitter - 1)}

    def chunks(self, layout: Layout) -> tuple[ChunkTime, ...]:
        """Each chunk, in the order of the model: the sum over its layers; slots that pad it count where they run."""
        model, why, lengths = self.model, why_padded(layout, self.does), chunk_lengths(self.model, layout)
        slots, sorts = Counter(chunk_slots(model, lengths)), iter(sorts_of(model, layout.matmul_codes))
        found = []
        for length in lengths:
            own = Counter(islice(sorts, length))
            padding = Counter({Sort(kind): number for kind, number in (slots - _kinds(own)).items()})
            run = own + padding if why not in (None, GATHERED) else own
            forward, backward, weight = (
                sum(number * self.passed[sort][place] for sort, number in run.items()) for place in range(3)
            )
            if why == GATHERED:  # a branch skips the work, not the messages
                gathered = sum(number * self.passed[sort].gathered for sort, number in padding.items())
                forward, backward = forward + gathered, backward + gathered
            found.append(ChunkTime(forward, backward, weight))
        return tuple(found)

    def _passed(self, sort: Sort, again: float, again_kernels: float) -> Passed:
        """A layer of a sort, forward and backward."""
        time = self.layers.times[sort]
        gathered, gathered_back, scattered = (0.0, 0.0, 0.0) if self.holds else self._weights(sort)
        launch = 0.0 if self.does.compiled else self.hardware.launch_seconds
        f = max(time.forward.seconds, time.forward.kernels * launch)
        b_again = max(again, again_kernels * launch)
        b = max(time.backward.seconds, time.backward.kernels * launch)
        back = b + b_again
        weight = min(time.weight, back)
        least, least_back = (IN_TICKS.gather * gathered, IN_TICKS.gather * gathered_back) if self.executed else (0, 0)
        reduced = IN_TICKS.scatter * scattered if self.executed else 0.0
        whole_f = self._beside(f, gathered, least)
        if reduces_with_weights(self.layout, self.does):
            weight = self._beside(weight, scattered, reduced)
            whole_b = self._beside(back - min(time.weight, back), gathered_back, least_back) + weight
        else:
            whole_b = self._beside(back, gathered_back + scattered, least_back + reduced)
        offload = self._offload(sort, whole_f, whole_b)
        whole_f, whole_b = whole_f + offload[0], whole_b + offload[1]
        return Passed(whole_f, whole_b, min(weight, whole_b), f, b, b_again, *offload, gathered)

    def _beside(self, compute: float, message: float, least: float) -> float:
        """Seconds of compute and the messages of weights beside it, of which `least` cannot be hidden."""
        if not self.does.prefetch_weights:
            return compute + message
        hidden = overlapped(compute, message, self.hardware.overlap_slowdown)
        return hidden + max(0.0, least - max(0.0, message - compute))

    def _microbatches(self, spent: dict[str, float]) -> None:
        """Forward and backward of all microbatches, the pipeline around them included."""
        layout, again, m = self.layout, self.again, self.microbatches
        forward, backward = self.layers.forward, self.layers.backward
        per_rank = self.model.layers / layout.pipe
        mean = self._mean_passed()
        whole_f, whole_b, f, b, b_again = mean.forward, mean.backward, mean.own_forward, mean.own_backward, mean.again
        offload, back = (mean.offload, mean.offload_back), b + b_again
        head = self.layers.head_seconds
        self.pieces = Pieces(whole_f, whole_b, mean.weight, head, self._transfer())
        """Of an average layer."""
        self.ideal = m * (self.model.layers * (whole_f + whole_b) + head) / layout.pipe
        count = m * per_rank
        share = m / layout.pipe
        spent["matmuls"] = count * (forward.matmul + backward.matmul) + share * self.layers.head.matmul
        spent["attention"] = count * (forward.attention + backward.attention)
        spent["other"] = count * (forward.other + backward.other) + share * self.layers.head.other
        spent["recomputation"] = count * (again.seconds - again.tensor - again.context - again.exchange)
        spent["exchange"] = count * (forward.exchange + backward.exchange + again.exchange)
        spent["tensor"] = count * (forward.tensor + backward.tensor + again.tensor) + share * self.layers.head.tensor
        spent["context"] = count * (forward.context + backward.context + again.context)
        spent["scales"] = count * (forward.scales + backward.scales)
        waiting = f - forward.seconds + b - backward.seconds + b_again - again.seconds
        spent["launches"] = count * waiting
        spent["offload"] = count * sum(offload)
        spent["data"] = count * (whole_f + whole_b - f - back - sum(offload))
        spent["bubble"] = spent["stragglers"] = 0.0  # of the schedule, below

    def _mean_passed(self) -> Passed:
        """A layer on average over kinds."""
        first, *others = self.passed.values()
        if not others:
            return first
        each = self.passed.items()
        return Passed(*(self.layers.average({kind: own[place] for kind, own in each}) for place in range(9)))

    def _weights(self, sort: Sort, layers: int = 1) -> tuple[float, float, float]:
        """Messages of the sharded weights and gradients of so many layers per microbatch: gathered forward, gathered
        backward, reduced."""
        layout, case = self.layout, self.layers.cases[sort]
        if layout.zero < 3:
            return 0.0, 0.0, 0.0
        gather = self.shards.gather(layers * case.parameters, layers * case.coded)
        gather += self.expert_shards.gather(layers * case.experts, layers * case.coded_experts)
        scatter = self.shards.scatter(layers * case.trained) + self.expert_shards.scatter(layers * case.experts)
        again = 2 if self.does.gather_again and layout.remat != "none" else 1
        return gather, again * gather, scatter

    def _held(self) -> float:
        """Seconds of the messages of chunks that are held whole, once a step."""
        rows = Counter(chunk_slots(self.model, chunk_lengths(self.model, self.layout)))
        gathers, _, scatters = zip(*(self._weights(Sort(kind), number) for kind, number in rows.items()), strict=True)
        return held_seconds(self.layout, sum(gathers), sum(scatters), self.hardware.overlap_slowdown)

    def _ends_over_pipe(self, elements: float) -> float:
        """The sum over pipe of the float32 gradients of embedding and head, of so many elements on a device."""
        layout = self.layout
        return self.network.stages(layout.devices // layout.pipe, layout.pipe).reduce(4.0 * elements)

    def _offload(self, sort: Sort, forward: float, backward: float) -> tuple[float, float]:
        """Seconds of copies to and from the host's memory that a layer's compute does not hide."""
        if not self.layout.offload_fraction:
            return 0.0, 0.0
        kept = self.layers.kept(self.layout.remat, self.slots)[sort]
        copy = self.layout.offload_fraction * kept / self.where.host_bandwidth
        return max(0.0, copy - forward), max(0.0, copy - backward)

    def _own_layers(self) -> tuple[float, float]:
        """Trained parameters of the layers' matrices, or of their factors, on a device, and those of experts; padding
        rows of the stacks included, since these take part in what comes once a step. Stages of layers that are alike
        are counted as equal."""
        if self.layout.pipe == 1 or not self.slots:
            own = self.model.layers / self.layout.pipe
            return own * self.layers.trained, own * self.layers.experts
        rows, cases = self.layout.virtual_stages, [self.layers.cases[Sort(kind)] for kind in self.slots]
        return rows * sum(case.trained for case in cases), rows * sum(case.experts for case in cases)

    def _own_codes(self) -> tuple[float, float]:
        """Of `_own_layers`, what is stored as codes of 8 bits."""
        if self.case.frozen:
            return 0.0, 0.0
        own = self.model.layers / self.layout.pipe
        return own * self.layers.coded, own * self.layers.coded_experts

    def _transfer(self) -> float:
        """From a stage to the next: the residual stream of a microbatch, of which each tensor rank sends its share."""
        layout = self.layout
        if layout.pipe == 1:
            return 0.0
        whole = float(self.case.tokens * self.case.embed * self.case.item)
        pair = self.network.pair(layout.devices // layout.pipe, layout.pipe)
        seconds = pair.shift(whole / layout.tensor)
        if layout.tensor > 1 and not self.case.sequence_parallel:
            seconds += self.where.ring(layout.tensor, 1).gather(whole)
        return seconds

    def _after(self, spent: dict[str, float]) -> None:
        """Once a step: what is left of the reduction of gradients, the update, the gather of weights."""
        layout = self.layout
        table = self.vocab * self.model.embed // layout.tensor
        # Every stage of this executor has both tables; elsewhere the first has one and the last the other.
        tables = 1 if self.model.tied or (layout.pipe > 1 and not self.executed) else 2
        trained = 0 if self.case.frozen else tables
        dense, experts = self._own_layers()
        coded, coded_experts = self._own_codes()
        own = dense + trained * table
        sharded = self.shards.ranks
        exposed = 0.0
        held = own / sharded if layout.zero else own
        held_experts = experts / self.expert_shards.ranks if layout.zero else experts
        if layout.zero == 3:
            times = 1 if self.executed else 2  # for the forward and for the backward
            exposed += tables * times * self.shards.gather(table) + trained * self.shards.scatter(table)
            exposed *= self.microbatches if self.does.prefetch_weights and not self.executed else 1
            exposed += self._beside_last(self.replicas.reduce(held + held_experts))
            exposed += self.shards.gather_once(own, coded) + self.expert_shards.gather_once(experts)
        elif layout.zero == 0:
            reduce = self.data.reduce(own) + self.expert_data.reduce(experts)
            exposed += (
                self._left(reduce, backward=True) if self.does.overlap_data != "none" else self._beside_last(reduce)
            )
        else:
            # Stage 2 holds no whole gradient between microbatches, unless a pipeline takes many through the weights.
            times = self.microbatches if layout.zero == 2 and layout.pipe == 1 else 1
            scatter = self.shards.scatter(own) + self.expert_shards.scatter(experts)
            gather = self.shards.gather_whole(own, coded) + self.expert_shards.gather_whole(experts, coded_experts)
            left = self._left(scatter, backward=True) if self.does.overlap_data != "none" else scatter
            exposed += times * left + self._beside_last(self.replicas.reduce(held + held_experts))
            exposed += self._left(gather, backward=False) if self.does.overlap_data == "both" else gather
        if self.holds:
            exposed += self._held()
        if self.executed:
            exposed += self._ends_over_pipe(trained * table / (sharded if layout.zero else 1))
        moved = self.update.moved * (0.5 if self.does.pure_16bit else 1.0)
        held += held_experts
        held_codes = coded / (sharded if layout.zero else 1)
        held_codes += coded_experts / (self.expert_shards.ranks if layout.zero else 1)
        update = self.device.bytes_seconds(moved * held + MASTER * held_codes)
        if layout.optimizer_offload:
            ends = trained * table / (sharded if layout.zero else 1)
            update = max(update, self.update.link_seconds(held - ends, ends, self.where.host_bandwidth))
        if self.update.iterations:
            update += self._orthogonal(sharded if layout.zero else 1)
        self.once = {"data": exposed, "optimizer": update}
        spent["data"] += exposed
        spent["optimizer"] = update

    def _beside_last(self, reduce: float) -> float:
        """What is left of a sum over ranks beside the last microbatch's backward, where the executor runs it there."""
        layout = self.layout
        after = only_after(layout.pipe, layout.replica, layout.fsdp * layout.expert * layout.context, layout.zero)
        early = layout.sums_early and after is None
        return REPLICA_SUMS * reduce if self.does.lockstep and early else reduce

    def _orthogonal(self, sharded: int) -> float:
        """Muon: ranks that share weights exchange layers for dims, work on whole matrices, and send them back."""
        layout = self.layout
        layers = self.model.layers / layout.pipe
        ring = self.where.ring(sharded * layout.tensor, 1)
        exchanged = ring.exchange(4.0 * layers * (self.layers.trained + self.layers.experts) / sharded)
        share = ceil(layers / ring.ranks)  # whole layers: some ranks may have none
        return 2 * exchanged + share * self.layers.orthogonal(self.device, self.update.iterations)

    def _left(self, message: float, backward: bool) -> float:
        """What is left of a message under the last microbatch's backward, or the first one's forward: the first or last
        of its pieces (a layer's part) has nothing to hide behind."""
        layers = max(1.0, self.model.layers / self.layout.pipe)
        work = self.layers.backward.seconds + self.again.seconds if backward else self.layers.forward.seconds
        hidden = work * (layers - 1)
        rest = message * (layers - 1) / layers
        return message / layers + overlapped(hidden, rest, self.hardware.overlap_slowdown) - hidden


def _kinds(sorts: Counter[Sort]) -> Counter[str]:
    """How many layers of each kind there are."""
    found: Counter[str] = Counter()
    for sort, number in sorts.items():
        found[sort.kind] += number
    return found
