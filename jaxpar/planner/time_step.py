"""A step's time on one cluster, but for what its schedule decides: worked out once for all layouts that share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2

from jaxpar.config.schema import ModelConfig
from jaxpar.hardware.cluster import Cluster
from jaxpar.model.flops import flops_per_step
from jaxpar.planner.hardware_model import HardwareModel, hardware_of
from jaxpar.planner.kept import kept_bytes
from jaxpar.planner.layout import Layout, Remat
from jaxpar.planner.mechanisms import Mechanisms
from jaxpar.planner.time_layer import ALL, LayerCase, Work, head_time, layer_case, layer_time, total
from jaxpar.planner.time_messages import Network, Ring, network_of, overlapped
from jaxpar.planner.time_operations import device_of
from jaxpar.planner.time_pipeline import Pieces, Stages, pipeline_seconds
from jaxpar.planner.time_update import Update, orthogonal_seconds

PRESET_RECOMPUTES = {
    "none": frozenset[str](),
    "gemm_last": frozenset({"attention_input", "mlp_input", "mlp_activated", "mlp_hidden"}),
    "selective": frozenset({"attention_output"}),
    "full": ALL,
}
"""The activations that each preset makes again."""


@dataclass(frozen=True)
class StepTime:
    """A predicted step."""

    seconds: float
    breakdown: Mapping[str, float]
    """Seconds by what they go to, on the rank that all wait for; they add up to `seconds`."""
    tokens_per_s_per_gpu: float
    mfu: float
    """Of the dense 16-bit peak, with the project's definition (`model.flops`)."""


class Steps:
    """Steps of one model on one cluster, with what layouts have in common."""

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
        self._layers: dict[tuple[int, int, int, str, bool, str], Layers] = {}
        self._rings: dict[tuple[int, int, bool], Ring] = {}
        self._steps: dict[tuple[object, ...], Step] = {}
        case = layer_case(model, sequence, 1, 1, 1, "allgather", False, "bfloat16")
        self._flops = flops_per_step(model, batch * sequence, round(batch * sequence * case.keys), self.vocab)
        self._peak = cluster.training_peak
        self._per_host, self._host_bandwidth = cluster.gpus_per_host, cluster.host_bandwidth

    def time(self, layout: Layout, *, waits: bool = True) -> StepTime:
        """The step of a layout; if it does not wait, of a pipeline in which every rank works all the time."""
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
        """The parts of the step of a layout, which those that differ in the schedule alone share."""
        key = (
            layout.pipe, layout.replica, layout.fsdp, layout.expert, layout.context, layout.tensor, layout.microbatch,
            layout.zero, layout.context_strategy, layout.remat, layout.offload_fraction, layout.optimizer_offload,
            layout.sequence_parallel, layout.precision,
        )  # fmt: skip
        if key not in self._steps:
            self._steps[key] = Step(self, layout)
        return self._steps[key]

    def layers(self, layout: Layout) -> Layers:
        """The layers of a layout, and its head."""
        key = (
            layout.microbatch, layout.tensor, layout.context, layout.context_strategy, layout.sequence_parallel,
            layout.precision,
        )  # fmt: skip
        if key not in self._layers:
            self._layers[key] = Layers(self, layout)
        return self._layers[key]

    def ring(self, ranks: int, stride: int, shared: bool = True) -> Ring:
        """As `Network.ring`."""
        key = ranks, stride, shared
        if key not in self._rings:
            self._rings[key] = self.network.ring(*key)
        return self._rings[key]

    def jitter(self, devices: int) -> float:
        """The step of so many devices over that of one host, for waiting for the slowest host."""
        return 1 + self.hardware.host_jitter * log2(max(1.0, devices / self._per_host))

    @property
    def host_bandwidth(self) -> float:
        """Bytes per second between a GPU and its host's memory."""
        return self._host_bandwidth


class Layers:
    """A layer, and the head, of layouts with like microbatches on like devices."""

    def __init__(self, where: Steps, layout: Layout):
        self._does = where.does
        self.case: LayerCase = layer_case(
            where.model, where.sequence, layout.microbatch, layout.tensor, layout.context, layout.context_strategy,
            layout.sequence_parallel, layout.precision,
        )  # fmt: skip
        self.time = layer_time(self.case, where.device, where.network, where.does)
        self.forward, self.backward = self.time.forward, self.time.backward
        both = head_time(self.case, where.vocab, where.device, where.network, where.does)
        self.head, self.head_seconds = total(both), both[0].seconds + both[1].seconds
        self._again: dict[Remat, Work] = {}

    def again(self, remat: Remat) -> Work:
        """What an average layer makes again in the backward."""
        if remat not in self._again:
            self._again[remat] = self._made(remat)
        return self._again[remat]

    def _made(self, remat: Remat) -> Work:
        if isinstance(remat, str):
            return self._made_again(PRESET_RECOMPUTES[remat])
        layers = sum(count for count, _ in remat)
        works = []
        for count, treatments in remat:
            names = frozenset(name for name, treatment in treatments if treatment == "recompute")
            if "attention_lse" in names:
                names |= {"attention_output"}
            works.append(self._made_again(names).times(count / layers))
        return total(works)

    def _made_again(self, names: frozenset[str]) -> Work:
        if names == ALL and not self._does.recompute_last_matmul:
            names = frozenset(self.time.operations) - {"mlp_down"}
        return self.time.again(names)


class Step:
    """The parts of a step's time."""

    def __init__(self, where: Steps, layout: Layout):
        self.where, self.layout = where, layout
        self.model, self.vocab, self.does, self.update = where.model, where.vocab, where.does, where.update
        self.hardware, self.device, self.network = where.hardware, where.device, where.network
        self.microbatches = max(1, layout.microbatches(where.batch))
        self.layers = where.layers(layout)
        self.case = self.layers.case
        self.again = self.layers.again(layout.remat)
        shards = layout.fsdp * layout.expert * layout.context
        self.data_ring = where.ring(layout.data * layout.context, layout.tensor, self.does.shared_cards)
        self.shard_ring = where.ring(shards, layout.tensor, self.does.shared_cards)
        self.jitter = where.jitter(layout.devices)
        self.spent: dict[str, float] = {}
        """But for the bubble and for waiting for the slowest host."""
        self.once: dict[str, float] = {}
        """Of that, what comes once a step, after the pipeline."""
        self._microbatches(self.spent, self.layers.forward, self.layers.backward)
        self._after(self.spent)

    def spent_in(self, layout: Layout, waits: bool) -> dict[str, float]:
        """All seconds, in the schedule of `layout`."""
        makespan = self.ideal
        if layout.pipe > 1 and waits:
            stages = Stages(
                layout.schedule, layout.pipe, self.microbatches, layout.virtual_stages, self.model.layers,
                self.does.lockstep, self.does.overlap_pipe,
            )  # fmt: skip
            makespan = pipeline_seconds(stages, self.pieces)
        return {**self.spent, "bubble": makespan - self.ideal, "stragglers": makespan * (self.jitter - 1)}

    def _microbatches(self, spent: dict[str, float], forward: Work, backward: Work) -> None:
        """Forward and backward of all microbatches, the pipeline around them included."""
        layout, again, m = self.layout, self.again, self.microbatches
        per_rank = self.model.layers / layout.pipe
        gathered, gathered_back = self._weights()
        launch = 0.0 if self.does.compiled else self.hardware.launch_seconds
        f = max(forward.seconds, forward.kernels * launch)
        b_again = max(again.seconds, again.kernels * launch)
        b = max(backward.seconds, backward.kernels * launch)
        slow = self.hardware.overlap_slowdown
        whole_f = overlapped(f, gathered, slow) if self.does.prefetch_weights else f + gathered
        back = b + b_again
        whole_b = overlapped(back, gathered_back, slow) if self.does.prefetch_weights else back + gathered_back
        offload = self._offload(whole_f, whole_b)
        whole_f, whole_b = whole_f + offload[0], whole_b + offload[1]
        head = self.layers.head_seconds
        self.pieces = Pieces(whole_f, whole_b, min(self.layers.time.weight, whole_b), head, self._transfer())
        self.ideal = m * (self.model.layers * (whole_f + whole_b) + head) / layout.pipe
        count = m * per_rank
        share = m / layout.pipe
        spent["matmuls"] = count * (forward.matmul + backward.matmul) + share * self.layers.head.matmul
        spent["attention"] = count * (forward.attention + backward.attention)
        spent["other"] = count * (forward.other + backward.other) + share * self.layers.head.other
        spent["recomputation"] = count * (again.seconds - again.tensor - again.context)
        spent["tensor"] = count * (forward.tensor + backward.tensor + again.tensor) + share * self.layers.head.tensor
        spent["context"] = count * (forward.context + backward.context + again.context)
        waiting = f - forward.seconds + b - backward.seconds + b_again - again.seconds
        spent["launches"] = count * waiting
        spent["offload"] = count * sum(offload)
        spent["data"] = count * (whole_f + whole_b - f - back - sum(offload))
        spent["bubble"] = spent["stragglers"] = 0.0  # of the schedule, below

    def _weights(self) -> tuple[float, float]:
        """Messages of a layer's sharded weights and gradients per microbatch: forward, backward."""
        layout = self.layout
        if layout.zero < 3:
            return 0.0, 0.0
        ring = self.shard_ring
        weights = float(self.case.item * self.case.parameters)
        gradients = (4.0 if self.does.gradient_type == "float32" else 2.0) * self.case.parameters
        again = 2 if self.does.gather_again and layout.remat != "none" else 1
        return ring.gather(weights), again * ring.gather(weights) + ring.gather(gradients)

    def _offload(self, forward: float, backward: float) -> tuple[float, float]:
        """What copies to and from the host's memory cannot hide behind a layer's compute."""
        if not self.layout.offload_fraction:
            return 0.0, 0.0
        copy = self.layout.offload_fraction * kept_bytes(self.case, self.layout.remat) / self.where.host_bandwidth
        return max(0.0, copy - forward), max(0.0, copy - backward)

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
        tables = 1 if self.model.tied or layout.pipe > 1 else 2
        own = self.model.layers / layout.pipe * self.case.parameters + tables * table
        item = 4.0 if self.does.gradient_type == "float32" else 2.0
        sharded = self.shard_ring.ranks
        replicas = self.where.ring(layout.replica, sharded * layout.tensor)
        exposed = 0.0
        held = own / sharded if layout.zero else own
        if layout.zero == 3:
            exposed += tables * (
                2 * self.shard_ring.gather(float(self.case.item * table)) + self.shard_ring.gather(item * table)
            )
            exposed *= self.microbatches if self.does.prefetch_weights else 1
            exposed += replicas.reduce(item * held)
        elif layout.zero == 0:
            reduce = self.data_ring.reduce(item * own)
            exposed += self._left(reduce, backward=True) if self.does.overlap_data != "none" else reduce
        else:
            # Stage 2 holds no whole gradient between microbatches, unless a pipeline takes many through the weights.
            times = self.microbatches if layout.zero == 2 and layout.pipe == 1 else 1
            scatter, gather = self.shard_ring.gather(item * own), self.shard_ring.gather(self.case.item * own)
            left = self._left(scatter, backward=True) if self.does.overlap_data != "none" else scatter
            exposed += times * left + replicas.reduce(item * held)
            exposed += self._left(gather, backward=False) if self.does.overlap_data == "both" else gather
        moved = self.update.moved * (0.5 if self.does.pure_16bit else 1.0)
        update = self.device.bytes_seconds(moved * held)
        if layout.optimizer_offload:
            update = max(update, 12.0 * held / self.where.host_bandwidth)
        if self.update.iterations:
            update += self._orthogonal(sharded if layout.zero else 1)
        self.once = {"data": exposed, "optimizer": update}
        spent["data"] += exposed
        spent["optimizer"] = update

    def _orthogonal(self, sharded: int) -> float:
        """Muon: ranks that share weights exchange layers for dims, work on whole matrices, and send them back."""
        layout = self.layout
        layers = self.model.layers / layout.pipe
        ring = self.where.ring(sharded * layout.tensor, 1)
        exchanged = ring.exchange(4.0 * layers * self.case.parameters / sharded)
        share = ceil(layers / ring.ranks)  # whole layers: some ranks may have none
        return 2 * exchanged + share * orthogonal_seconds(self.case, self.device, self.update.iterations)

    def _left(self, message: float, backward: bool) -> float:
        """What is left of a message under the last microbatch's backward, or the first one's forward: the first or last
        of its pieces (a layer's part) has nothing to hide behind."""
        layers = max(1.0, self.model.layers / self.layout.pipe)
        work = self.layers.backward.seconds + self.again.seconds if backward else self.layers.forward.seconds
        hidden = work * (layers - 1)
        rest = message * (layers - 1) / layers
        return message / layers + overlapped(hidden, rest, self.hardware.overlap_slowdown) - hidden
