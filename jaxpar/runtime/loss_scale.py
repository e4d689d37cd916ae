"""Dynamic loss scaling for float16 (arXiv:1710.03740, section 3.2).

Small gradients vanish in float16, so the loss is multiplied by a scale before the backward and the gradients divided by
it after. An overflow halves the scale and skips the step; a row of good steps doubles it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

from jaxpar.config.schema import PrecisionConfig
from jaxpar.runtime.carried import REPLICATED, Carried, Outcome

INITIAL = 2.0**16
"""The scale of the first step."""
INTERVAL = 1000
"""Steps in a row with finite gradients before the scale doubles."""


class LossScale(NamedTuple):
    """State of the loss scale."""

    value: Float[Array, ""]
    good_steps: Int[Array, ""]


@dataclass(frozen=True)
class LossScaling(Carried[LossScale]):
    """The loss scale from step to step."""

    name = "loss_scale"
    title = "loss scale"

    def init(self) -> LossScale:
        return LossScale(jnp.float32(INITIAL), jnp.int32(0))

    def partitions(self) -> PyTree[PartitionSpec]:
        return LossScale(REPLICATED, REPLICATED)

    def loss_scale(self, state: LossScale) -> Float[Array, ""]:
        return state.value

    def next(self, state: LossScale, outcome: Outcome) -> LossScale:
        good = jnp.where(outcome.finite, state.good_steps + 1, 0)
        doubled = good >= INTERVAL
        grown = jnp.where(doubled, state.value * 2, state.value)
        value = jnp.where(outcome.finite, grown, jnp.maximum(state.value / 2, 1.0))
        return LossScale(value, jnp.where(doubled, 0, good))


def loss_scaling(precision: PrecisionConfig) -> LossScaling | None:
    """The loss scale of a configuration; None unless matmuls are computed in float16."""
    if precision.compute != "float16":
        return None
    return LossScaling()
