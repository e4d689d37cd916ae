"""Steps of one model on one cluster; those of layouts that differ in the schedule alone are computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxpar.config.schema import ModelConfig
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.mechanisms import Mechanisms
from jaxpar.cost.messages import Network
from jaxpar.hardware.cluster import Cluster
from jaxpar.model.flops import causal_pairs, flops_per_step
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.chunks import chunk_lengths, kinds_of_slots
from jaxpar.planner.step_time.common import Common
from jaxpar.planner.step_time.exposed import Change
from jaxpar.planner.step_time.step import Step
from jaxpar.planner.step_time.update import Update
from jaxpar.planner.step_time.weight_traffic import as_executed, holds_chunks, reduces_with_weights


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
        self, model: ModelConfig, sequence: int, batch: int, cluster: Cluster, does: Mechanisms,
        hardware: HardwareModel | None, update: Update, network: Network | None = None, change: Change | None = None,
    ):  # fmt: skip
        super().__init__(model, sequence, batch, cluster, does, hardware, update, network, change)
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
            layout.sequence_parallel, layout.precision, layout.wire, kinds_of_slots(self.model, layout),
            layout.expert_exchange, layout.expert_capacity, layout.imbalance, layout.expert_slices,
            layout.exchange_wire, layout.expert_codes, layout.matmul_codes, layout.attention, layout.sums_early,
            layout.shard_state, layout.expert_own_rows, self._held_rows(layout),
            layout.embedding_messages, reduces_with_weights(layout, self.does),
        )  # fmt: skip
        own = key, layout.shared_ends
        if own not in self._steps:
            self._steps[own] = Step(self, layout, self._steps.get((key, not layout.shared_ends)))
        return self._steps[own]

    def _held_rows(self, layout: Layout) -> tuple[int, int]:
        """Virtual stages and the rows of each, of chunks that are held whole; none where they are not."""
        if not (as_executed(layout, self.does) and holds_chunks(layout)):
            return 0, 0
        return layout.virtual_stages, max(chunk_lengths(self.model, layout))
