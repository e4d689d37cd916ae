"""The numbers of a configuration that a compiled step takes as arguments, so that other ones run the same program."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, UInt

from jaxpar.config import Config
from jaxpar.optim.arguments import OptimizerArguments, optimizer_arguments
from jaxpar.optim.outer import OuterArguments
from jaxpar.optim.schedule import float32


class StepArguments(NamedTuple):
    """Scalars that a step reads besides state and batch, and the initial state is made from; alike on every device."""

    optimizer: OptimizerArguments
    seed: UInt[Array, ""]
    """Seed of the initial weights, of dropout and of routers that draw."""
    outer: OuterArguments
    """Numbers of outer updates of islands."""


def step_arguments(config: Config) -> StepArguments:
    """The arguments that `config` asks for, as NumPy scalars."""
    outer = config.islands.outer
    seed: Any = np.uint32(config.run.seed)
    return StepArguments(
        optimizer_arguments(config.optimizer, config.run.steps),
        seed,
        OuterArguments(float32(outer.rate), float32(outer.momentum), float32(config.islands.mix)),
    )
