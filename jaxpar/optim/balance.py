"""Biases of a router that balance the load of experts without a loss (arXiv:2408.15664)."""

from __future__ import annotations

import jax.numpy as jnp

from jaxpar.optim.rule import Rule


def balance(rate: float) -> Rule:
    """Each bias moves by `rate`: up where its expert got fewer tokens than the mean, down where it got more.

    What comes as the gradient are the tokens of each expert in the batch, [layers, experts], in any unit.
    """

    def direction(gradient, weight, mu, nu, step):
        return jnp.sign(gradient - gradient.mean(axis=-1, keepdims=True)), None, None

    return Rule(peak=rate, mu=False, nu=None, direction=direction)
