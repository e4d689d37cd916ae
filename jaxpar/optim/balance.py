"""Biases of a router that balance its load without a loss (arXiv:2408.15664)."""

from __future__ import annotations

import jax.numpy as jnp

from jaxpar.optim.rule import Rule

ROUNDING = 1e-6
"""Share of the mean by which float32 sums of layouts may differ. One token in a million is no reason to move a bias."""


def balance(rate: float) -> Rule:
    """Move each bias by `rate`: up if its choice got fewer tokens than the mean, down if it got more, and not at all
    if it got the mean.

    The gradient is the number of tokens of each choice in the batch, [layers, choices], in any unit.
    """

    def direction(gradient, weight, state, step, arguments):
        mean = gradient.mean(axis=-1, keepdims=True)
        excess = gradient - mean
        return jnp.where(jnp.abs(excess) > ROUNDING * mean, jnp.sign(excess), 0.0), {}

    return Rule({}, direction, "row", rate=lambda arguments: jnp.float32(rate))
