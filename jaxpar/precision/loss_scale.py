"""Dynamic loss scaling for float16 (arXiv:1710.03740, section 3.2).

Small gradients vanish in float16, so the loss is multiplied by a scale before the backward and the gradients divided by
it after. An overflow halves the scale and skips the step; a row of good steps doubles it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config.schema import PrecisionConfig


class LossScale(NamedTuple):
    """State of the loss scale; 1 and idle unless compute is float16."""

    value: Float[Array, ""]
    good_steps: Int[Array, ""]


def initial_loss_scale(precision: PrecisionConfig) -> LossScale:
    """The scale of the first step."""
    value = precision.loss_scale if precision.compute == "float16" else 1.0
    return LossScale(jnp.float32(value), jnp.int32(0))


def next_loss_scale(scale: LossScale, finite: Bool[Array, ""], precision: PrecisionConfig) -> LossScale:
    """The scale after a step whose gradients were `finite`."""
    if precision.compute != "float16":
        return scale
    good = jnp.where(finite, scale.good_steps + 1, 0)
    doubled = good >= precision.loss_scale_interval
    value = jnp.where(finite, jnp.where(doubled, scale.value * 2, scale.value), jnp.maximum(scale.value / 2, 1.0))
    return LossScale(value, jnp.where(doubled, 0, good))
