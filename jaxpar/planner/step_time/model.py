"""Seconds of a training step of jaxpar on any layout and cluster, and where they go.

Built from the model's real shapes: every matmul, attention kernel and elementwise pass of a layer (`cost.layer`) on a
GPU that reaches a share of its datasheet (`cost.hardware_model`, `cost.operations`), every message by the bytes of its
collective (`cost.messages`), pipelines by the ticks of their schedule (`pipeline`), put together in `step`, and in
`once` for what comes once a step. Steps of layouts that differ in the schedule alone are computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from jaxpar.config.schema import ModelConfig
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.messages import Network
from jaxpar.hardware.cluster import Cluster
from jaxpar.model.flops import causal_pairs, flops_per_step
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.chunks import chunk_lengths, kinds_of_slots
from jaxpar.planner.step_time.common import Common
from jaxpar.planner.step_time.step import Step
from jaxpar.planner.step_time.update import ADAMW, Update
from jaxpar.planner.step_time.weight_traffic import holds_chunks, reduces_with_weights


@dataclass(frozen=True)
class StepTime:
    """A predicted step."""

    seconds: float
    breakdown: Mapping[str, float]
    """Seconds by part, on the slowest rank; they add up to `seconds`."""
    tokens_per_s_per_gpu: float
    mfu: float
    """Share of the dense 16-bit peak, with the project's definition (`model.flops`)."""


class Steps(Common):
    """Steps by layout."""

    def __init__(
        self, model: ModelConfig, sequence: int, batch: int, cluster: Cluster, hardware: HardwareModel | None,
        update: Update, network: Network | None = None,
    ):  # fmt: skip
        super().__init__(model, sequence, batch, cluster, hardware, update, network)
        self._steps: dict[tuple[tuple[object, ...], bool], Step] = {}
        """By what they depend on, and by whether pipeline ranks share the ends."""
        tokens = batch * sequence
        self._flops = flops_per_step(model, tokens, causal_pairs(model, tokens, sequence), self.vocab, update.lora)
        self._peak = cluster.training_peak

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
            layout.resident_state, layout.precision, layout.wire, kinds_of_slots(self.model, layout),
            layout.expert_exchange, layout.expert_capacity, layout.imbalance, layout.expert_slices,
            layout.exchange_dtype, layout.expert_codes, layout.matmul_codes, layout.attention,
            layout.shard_state, layout.expert_own_rows, layout.expert_loop, self._held_rows(layout),
            layout.embedding_messages, reduces_with_weights(layout),
        )  # fmt: skip
        own = key, layout.shared_ends
        if own not in self._steps:
            self._steps[own] = Step(self, layout, self._steps.get((key, not layout.shared_ends)))
        return self._steps[own]

    def _held_rows(self, layout: Layout) -> tuple[int, int]:
        """Virtual stages and the rows of each, of chunks that are held whole; none where they are not."""
        if not holds_chunks(layout):
            return 0, 0
        return layout.virtual_stages, max(chunk_lengths(self.model, layout))


KEPT = 256
"""How many (model, cluster) pairs have their steps cached: a search needs thousands of steps of one pair, or, where
hosts are of several kinds, of one pair for each kind and stage length."""

_known: dict[tuple[object, ...], tuple[Steps, tuple[object, ...]]] = {}


def step_time(
    model: ModelConfig,
    sequence_length: int,
    global_batch: int,
    layout: Layout,
    cluster: Cluster,
    hardware: HardwareModel | None = None,
    update: Update = ADAMW,
    network: Network | None = None,
) -> StepTime:
    """Predict one step.

    Args:
        model: the decoder, preset filled in and `vocab` set.
        sequence_length: tokens of a row.
        global_batch: rows of a step.
        layout: how it is spread; the product of its axes is the number of devices.
        cluster: where it runs; devices are taken in order.
        hardware: parameters of its GPUs; None means those fitted for them.
        update: the rule of the optimizer (`update.update_of`).
        network: measured bandwidths (`measured`); None means the cluster's links.
    """
    steps = steps_of(model, sequence_length, global_batch, cluster, hardware, update, network)
    return steps.time(layout)


def steps_of(
    model: ModelConfig,
    sequence_length: int,
    global_batch: int,
    cluster: Cluster,
    hardware: HardwareModel | None = None,
    update: Update = ADAMW,
    network: Network | None = None,
) -> Steps:
    """The steps of a model on a cluster, by layout; the arguments are those of `step_time`.

    Cached by the identity of these objects; the cache holds the objects, so that their ids stay unique.
    """
    model = _same(model)
    objects = model, cluster, hardware, update, network
    key = (sequence_length, global_batch, *map(id, objects))
    known = _known.pop(key, None)
    if known is None:
        steps = Steps(model, sequence_length, global_batch, cluster, hardware, update, network)
        known = steps, objects
        if len(_known) >= KEPT:
            del _known[next(iter(_known))]
    _known[key] = known  # most recently used last
    return known[0]


@lru_cache(maxsize=KEPT)
def _same(model: ModelConfig) -> ModelConfig:
    """One object for all that are equal."""
    return model
