"""The numbers of `optimizer` as arguments of a compiled step: another value runs the same program."""

from __future__ import annotations

import math
from typing import NamedTuple

from jaxtyping import Array, Float, Int

from jaxpar.config.reading.options import options_of, record_of
from jaxpar.config.reading.typed import field_types, plain_type
from jaxpar.config.schema import OptimizerConfig
from jaxpar.optim.schedule import ScheduleArguments, float32, schedule_arguments, schedule_at


class Option(NamedTuple):
    """A number of `optimizer.options`."""

    value: Float[Array, ""]
    rest: Float[Array, ""]
    """One minus the value, rounded once: float32's 1 - 0.95 is not float32's 0.05."""

    def mean(self, average: Float[Array, "*shard"], value: Float[Array, "*shard"]) -> Float[Array, "*shard"]:
        """The exponential moving average with `value` added; the option is its decay."""
        return self.rest * value + self.value * average


class OptimizerArguments(NamedTuple):
    """Inputs of update rules besides gradients and state; fields are named like the keys of `optimizer`."""

    schedule: ScheduleArguments | None
    """Schedule of the learning rates; None if they are those of one step."""
    learning_rate: Float[Array, ""]
    """The peak, or that of a step."""
    matrix_learning_rate: Float[Array, ""]
    weight_decay: Float[Array, ""]
    clip_norm: Float[Array, ""]
    """Infinity where nothing is clipped."""
    ema: Float[Array, ""]
    """0 where no average is kept."""
    options: dict[str, Option]
    """The numbers with a fraction of `optimizer.options`, by name."""

    def for_step(self, step: Int[Array, ""] | int) -> OptimizerArguments:
        """The arguments of update `step` (from 0): learning rates are those of the schedule there."""
        assert self.schedule is not None, "the arguments are those of a step already"
        return self.scaled(schedule_at(self.schedule, step))._replace(schedule=None)

    def scaled(self, share: Float[Array, ""] | float) -> OptimizerArguments:
        """The arguments with a `share` of each learning rate."""
        rates = self.learning_rate * share, self.matrix_learning_rate * share
        return self._replace(learning_rate=rates[0], matrix_learning_rate=rates[1])


def optimizer_arguments(config: OptimizerConfig, steps: int) -> OptimizerArguments:
    """The arguments of a run of `steps` updates, as NumPy scalars."""
    options, kinds = vars(options_of(config)), field_types(record_of(config.name))
    return OptimizerArguments(
        schedule=schedule_arguments(config, steps),
        learning_rate=float32(config.learning_rate),
        matrix_learning_rate=float32(config.matrix_learning_rate),
        weight_decay=float32(config.weight_decay),
        clip_norm=float32(math.inf if config.clip_norm is None else config.clip_norm),
        ema=float32(config.ema or 0.0),
        options={
            name: Option(float32(value), float32(1 - value))
            for name, value in options.items()
            if plain_type(kinds[name]) is float
        },
    )
