"""Seconds of a training step on any layout, cluster and generation of software, and where they go.

Built from the model's real shapes: every matmul, attention kernel and elementwise pass of a layer (`time_layer`) on a
GPU that reaches a share of its datasheet (`hardware_model`, `time_operations`), every message by the bytes of its verb
(`time_messages`), pipelines by the schedule simulator (`time_pipeline`). What differs between training systems is which
mechanisms they have (`mechanisms`), never a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2

from jaxpar.config.schema import ModelConfig
from jaxpar.hardware.cluster import Cluster
from jaxpar.model.flops import flops_per_step
from jaxpar.planner.hardware_model import HardwareModel, hardware_of
from jaxpar.planner.layout import Layout
from jaxpar.planner.mechanisms import GENERATIONS, Mechanisms
from jaxpar.planner.time_layer import (
    ALL,
    LayerCase,
    LayerTime,
    Work,
    head_time,
    layer_case,
    layer_time,
    total,
)
from jaxpar.planner.time_messages import Network, network_of, overlapped
from jaxpar.planner.time_operations import device_of
from jaxpar.planner.time_pipeline import Pieces, Stages, bubble_free, pipeline_seconds
from jaxpar.planner.time_update import ADAMW, Update, orthogonal_seconds

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


def step_time(
    model: ModelConfig,
    sequence_length: int,
    global_batch: int,
    layout: Layout,
    cluster: Cluster,
    mechanisms: Mechanisms = GENERATIONS["jaxpar"],
    hardware: HardwareModel | None = None,
    update: Update = ADAMW,
    network: Network | None = None,
) -> StepTime:
    """Predict one step.

    Args:
        model: the decoder, preset filled in and `vocab` set.
        sequence_length: tokens of a row.
        global_batch: rows of a step.
        layout: how it is spread; its axes multiply to the devices that take part.
        cluster: where it runs; devices are taken in order.
        mechanisms: of the software that runs it.
        hardware: what its GPUs reach; None is what was fitted for them.
        update: the rule of the optimizer (`time_update.update_of`).
        network: what its messages reach, where that was measured (`measured`); None is that of the cluster's links.
    """
    return _Step(
        model, sequence_length, global_batch, layout, cluster, mechanisms, hardware, update, network=network
    ).time()


def floor_time(
    model: ModelConfig,
    sequence_length: int,
    global_batch: int,
    layout: Layout,
    cluster: Cluster,
    mechanisms: Mechanisms = GENERATIONS["jaxpar"],
    hardware: HardwareModel | None = None,
    update: Update = ADAMW,
) -> StepTime:
    """As `step_time`, with a pipeline in which no rank waits: below it for every schedule, and simulates nothing."""
    return _Step(
        model, sequence_length, global_batch, layout, cluster, mechanisms, hardware, update, waits=False
    ).time()


class _Step:
    """The parts of a step's time."""

    def __init__(
        self, model: ModelConfig, sequence: int, batch: int, layout: Layout, cluster: Cluster, does: Mechanisms,
        hardware: HardwareModel | None, update: Update, *, waits: bool = True, network: Network | None = None,
    ):  # fmt: skip
        self.waits, self.update = waits, update
        assert model.vocab is not None, "the vocabulary is known before a step is predicted"
        self.model, self.sequence, self.batch, self.layout = model, sequence, batch, layout
        self.cluster, self.does, self.vocab = cluster, does, model.vocab
        self.hardware = hardware_of(cluster.gpu) if hardware is None else hardware
        self.device = device_of(cluster.gpu, self.hardware)
        self.network = network_of(cluster, self.hardware) if network is None else network
        self.microbatches = max(1, layout.microbatches(batch))
        self.case: LayerCase = layer_case(
            model, sequence, layout.microbatch, layout.tensor, layout.context, layout.context_strategy,
            layout.sequence_parallel, layout.precision,
        )  # fmt: skip
        self.layer: LayerTime = layer_time(self.case, self.device, self.network, does)
        self.head = head_time(self.case, self.vocab, self.device, self.network, does)
        self.again = self._again()
        self.data_ring = self.network.ring(layout.data * layout.context, layout.tensor, does.shared_cards)
        self.shard_ring = self.network.ring(
            layout.fsdp * layout.expert * layout.context, layout.tensor, does.shared_cards
        )
        self.jitter = 1 + self.hardware.host_jitter * log2(max(1.0, layout.devices / cluster.gpus_per_host))

    def time(self) -> StepTime:
        """All of it."""
        forward, backward = self.layer.forward, self.layer.backward
        spent: dict[str, float] = {}
        self._microbatches(spent, forward, backward)
        self._after(spent)
        seconds = sum(spent.values())
        tokens = self.batch * self.sequence
        pairs = self.batch * self.sequence * self.case.keys
        flops = flops_per_step(self.model, tokens, round(pairs), self.vocab)
        devices = self.layout.devices
        return StepTime(
            seconds=seconds,
            breakdown=spent,
            tokens_per_s_per_gpu=tokens / seconds / devices,
            mfu=flops / (seconds * devices * self.cluster.training_peak),
        )

    def _again(self) -> Work:
        """What an average layer makes again in the backward."""
        remat = self.layout.remat
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
        if names == ALL and not self.does.recompute_last_matmul:
            names = frozenset(self.layer.operations) - {"mlp_down"}
        return self.layer.again(names)

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
        head = self.head[0].seconds + self.head[1].seconds
        transfer = self._transfer()
        jitter = self.jitter
        if layout.pipe == 1:
            makespan = ideal = m * (self.model.layers * (whole_f + whole_b) + head)
        else:
            stages = Stages(
                layout.schedule, layout.pipe, m, layout.virtual_stages, self.model.layers, self.does.lockstep,
                self.does.overlap_pipe,
            )  # fmt: skip
            pieces = Pieces(whole_f, whole_b, min(self.layer.weight, whole_b), head, transfer)
            ideal = bubble_free(stages, pieces)
            makespan = pipeline_seconds(stages, pieces) if self.waits else ideal
        count = m * per_rank
        share = m / layout.pipe
        spent["matmuls"] = count * (forward.matmul + backward.matmul) + share * sum(w.matmul for w in self.head)
        spent["attention"] = count * (forward.attention + backward.attention)
        spent["other"] = count * (forward.other + backward.other) + share * sum(w.other for w in self.head)
        spent["recomputation"] = count * (again.seconds - again.tensor - again.context)
        spent["tensor"] = count * (forward.tensor + backward.tensor + again.tensor) + share * sum(
            w.tensor for w in self.head
        )
        spent["context"] = count * (forward.context + backward.context + again.context)
        waiting = f - forward.seconds + b - backward.seconds + b_again - again.seconds
        spent["launches"] = count * waiting
        spent["offload"] = count * sum(offload)
        spent["data"] = count * (whole_f + whole_b - f - back - sum(offload))
        spent["bubble"] = makespan - ideal
        spent["stragglers"] = makespan * (jitter - 1)

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
        from jaxpar.planner.kept import kept_bytes

        copy = self.layout.offload_fraction * kept_bytes(self.case, self.layout.remat) / self.cluster.host_bandwidth
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
            seconds += self.network.ring(layout.tensor, 1).gather(whole)
        return seconds

    def _after(self, spent: dict[str, float]) -> None:
        """Once a step: what is left of the reduction of gradients, the update, the gather of weights."""
        layout = self.layout
        table = self.vocab * self.model.embed // layout.tensor
        tables = 1 if self.model.tied or layout.pipe > 1 else 2
        own = self.model.layers / layout.pipe * self.case.parameters + tables * table
        item = 4.0 if self.does.gradient_type == "float32" else 2.0
        sharded = self.shard_ring.ranks
        replicas = self.network.ring(layout.replica, sharded * layout.tensor)
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
        spent["data"] += exposed
        moved = self.update.moved * (0.5 if self.does.pure_16bit else 1.0)
        spent["optimizer"] = self.device.bytes_seconds(moved * held)
        if layout.optimizer_offload:
            copies = 12.0 * held / self.cluster.host_bandwidth
            spent["optimizer"] = max(spent["optimizer"], copies)
        if self.update.iterations:
            spent["optimizer"] += self._orthogonal(sharded if layout.zero else 1)

    def _orthogonal(self, sharded: int) -> float:
        """Muon: ranks that share weights exchange layers for dims, work on whole matrices, and send them back."""
        layout = self.layout
        layers = self.model.layers / layout.pipe
        ring = self.network.ring(sharded * layout.tensor, 1)
        exchanged = ring.exchange(4.0 * layers * self.case.parameters / sharded)
        share = ceil(layers / ring.ranks)  # whole layers: some ranks may have none
        return 2 * exchanged + share * orthogonal_seconds(self.case, self.device, self.update.iterations)

    def _left(self, message: float, backward: bool) -> float:
        """What is left of a message under the last microbatch's backward, or the first one's forward: the first or last
        of its pieces (a layer's part) has nothing to hide behind."""
        layers = max(1.0, self.model.layers / self.layout.pipe)
        work = self.layer.backward.seconds + self.again.seconds if backward else self.layer.forward.seconds
        hidden = work * (layers - 1)
        rest = message * (layers - 1) / layers
        return message / layers + overlapped(hidden, rest, self.hardware.overlap_slowdown) - hidden
