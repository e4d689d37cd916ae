"""The exponential moving average of the weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree


def next_average(average: PyTree, weights: PyTree, step: Int[Array, ""], decay: Float[Array, ""]) -> PyTree:
    """The average after an update that gave `weights`; `step` counts the updates before it. Elementwise, in float32.

    `average <- d average + (1 - d) weights` with d = min(decay, (1 + step) / (10 + step)): it starts as the initial
    weights, and the warm-up of d lets it forget them within some ten updates (as TensorFlow's
    `ExponentialMovingAverage(num_updates)`), so there is no bias to correct and no count to keep. An average that
    begins later, in a continued run, starts as the weights of that moment.
    """
    t = step.astype(jnp.float32)
    share = 1.0 - jnp.minimum(decay, (1.0 + t) / (10.0 + t))
    return jax.tree.map(lambda old, weight: old + share * (weight - old), average, weights)
