"""Seconds of a training step of jaxpar on any layout and cluster, and where they go.

Built from the model's real shapes: every matmul, attention kernel and elementwise pass of a layer (`cost.layer`) on a
GPU that reaches a share of its datasheet (`cost.hardware_model`, `cost.operations`), every message by the bytes of its
collective (`cost.messages`), pipelines by the ticks of their schedule (`pipeline`), put together in `step`, and in
`once` for what comes once a step. Steps of layouts that differ in the schedule alone are computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from jaxpar.config.schema import ModelConfig
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.layout import Layout
from jaxpar.hardware.cluster import Cluster
from jaxpar.layers.declaration.adaptation import adaptation
from jaxpar.model.flops import causal_pairs, flops_per_step
from jaxpar.planner.step_time.chunks import chunk_lengths, kinds_of_slots
from jaxpar.planner.step_time.common import OF_LAYERS, Common
from jaxpar.planner.step_time.step import Step
from jaxpar.planner.step_time.update import ADAMW, Update
from jaxpar.planner.step_time.weight_traffic import holds_chunks, reduces_with_weights
from jaxpar.trace.parts import Run


@dataclass(frozen=True)
class StepTime:
    """A predicted step."""

    seconds: float
    breakdown: Mapping[str, float]
    """Seconds by part, on the slowest rank; they add up to `seconds`."""
    program: Run = field(compare=False)
    """The program that all ranks run, without stragglers; a bubble is in what they run in it."""
    tokens_per_s_per_gpu: float
    mfu: float
    """Share of the dense 16-bit peak, with the project's definition (`model.flops`)."""

    def times(self, factor: float) -> StepTime:
        """The same on a system that takes so many times as long."""
        spent = {name: factor * seconds for name, seconds in self.breakdown.items()}
        return self.taking(factor * self.seconds, spent, self.program.times(factor))

    def taking(self, seconds: float, breakdown: Mapping[str, float], program: Run) -> StepTime:
        """The same work in other seconds."""
        faster = self.seconds / seconds
        return StepTime(seconds, breakdown, program, faster * self.tokens_per_s_per_gpu, faster * self.mfu)


of_step = attrgetter(
    *OF_LAYERS, "pipe", "replica", "fsdp", "zero", "remat", "offload_fraction", "optimizer_offload", "resident_state",
    "wire", "shard_state", "embedding_messages", "shared_embed_and_head",
)  # fmt: skip
"""Fields of a layout that decide the parts of its step, with what the schedule changes of them."""


class Steps(Common):
    """Steps by layout."""

    @cached_property
    def _flops(self) -> float:
        tokens = self.batch * self.sequence
        pairs = causal_pairs(self.model, tokens, self.sequence)
        return flops_per_step(self.model, tokens, pairs, self.vocab, adaptation(self.update.lora))

    def time(self, layout: Layout) -> StepTime:
        """The step of a layout."""
        step = self.step(layout)
        pipeline = step.pipeline(layout)
        return self.priced(step.spent_in(layout, pipeline), step.program(pipeline), layout.devices)

    def floor(self, layout: Layout) -> dict[str, float]:
        """Seconds by part of a pipeline in which no rank ever waits."""
        step = self.step(layout)
        return step.spent_in(layout, step.work)

    def priced(self, spent: Mapping[str, float], program: Run, devices: int) -> StepTime:
        """A step of such parts and such a program on so many devices."""
        seconds = sum(spent.values())
        speed = self.batch * self.sequence / seconds / devices
        return StepTime(seconds, spent, program, speed, self._flops / (seconds * devices * self.cluster.training_peak))

    def step(self, layout: Layout) -> Step:
        """The parts of the step of a layout, shared by layouts that differ in the schedule alone."""
        counted = holds_chunks(layout) or layout.stage_layers is not None
        rows = (layout.virtual_stages, max(chunk_lengths(self.model, layout))) if counted else None
        key = Step, of_step(layout), kinds_of_slots(self.model, layout), rows, reduces_with_weights(layout)
        return self.made.of(key, lambda: Step(self, layout))


def step_time(
    model: ModelConfig, sequence_length: int, global_batch: int, layout: Layout, cluster: Cluster,
    hardware: HardwareModel | None = None, update: Update = ADAMW,
) -> StepTime:  # fmt: skip
    """Predict one step; the arguments are those of `Steps`."""
    return Steps(model, sequence_length, global_batch, cluster, hardware, update).time(layout)
