"""The numbers of `optimizer` as arguments of a compiled step: another value runs the same program."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from jaxtyping import Array, Float, Int

from jaxpar.config.schema import OptimizerConfig
from jaxpar.optim.schedule import ScheduleArguments, float32, schedule_arguments, schedule_at


class Shares(NamedTuple):
    """The shares of an exponential moving average, each rounded once: float32's 1 - 0.95 is not float32's 0.05."""

    old: Float[Array, ""]
    """Share of the average before, its decay."""
    new: Float[Array, ""]
    """Share of what is added, one minus the decay."""

    def mean(self, average: Float[Array, "*shard"], value: Float[Array, "*shard"]) -> Float[Array, "*shard"]:
        """The average with `value` added."""
        return self.new * value + self.old * average


class OptimizerArguments(NamedTuple):
    """Inputs of update rules besides gradients and state; fields are named like the keys of `optimizer`."""

    schedule: ScheduleArguments | None
    """Schedule of the learning rates; None if they are those of one step."""
    learning_rate: Float[Array, ""]
    """The peak, or that of a step."""
    matrix_learning_rate: Float[Array, ""]
    beta1: Shares
    beta2: Shares
    epsilon: Float[Array, ""]
    weight_decay: Float[Array, ""]
    clip_norm: Float[Array, ""]
    """Infinity where nothing is clipped."""
    muon_momentum: Float[Array, ""]
    lion_beta1: Shares
    lion_beta2: Shares
    ema: Float[Array, ""]
    """0 where no average is kept."""

    def at(self, step: Int[Array, ""] | int) -> OptimizerArguments:
        """The arguments of update `step` (from 0): learning rates are those of the schedule there."""
        assert self.schedule is not None, "the arguments are those of a step already"
        return self.scaled(schedule_at(self.schedule, step))._replace(schedule=None)

    def scaled(self, share: Any) -> OptimizerArguments:
        """The arguments with a `share` of each learning rate."""
        rates = self.learning_rate * share, self.matrix_learning_rate * share
        return self._replace(learning_rate=rates[0], matrix_learning_rate=rates[1])


def optimizer_arguments(config: OptimizerConfig, steps: int) -> OptimizerArguments:
    """The arguments of a run of `steps` updates, as NumPy scalars."""
    shares = lambda decay: Shares(float32(decay), float32(1 - decay))
    return OptimizerArguments(
        schedule=schedule_arguments(config, steps),
        learning_rate=float32(config.learning_rate),
        matrix_learning_rate=float32(config.matrix_learning_rate),
        beta1=shares(config.beta1),
        beta2=shares(config.beta2),
        epsilon=float32(config.epsilon),
        weight_decay=float32(config.weight_decay),
        clip_norm=float32(math.inf if config.clip_norm is None else config.clip_norm),
        muon_momentum=float32(config.muon_momentum),
        lion_beta1=shares(config.lion_beta1),
        lion_beta2=shares(config.lion_beta2),
        ema=float32(config.ema or 0.0),
    )
