"""xIELU, a non-linearity with two learned numbers in each layer."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration.part import Part, Weights, vector
from jaxpar.layers.feed_forward.base import FeedForward
from jaxpar.layers.feed_forward.plain import Plain

BETA, EPSILON = 0.5, -1e-6
"""The slope at 0; and the least argument, near 0, of the exponential."""


def _first_positive(key: Array, shape: tuple[int, ...]) -> Array:
    """The number whose softplus is 0.8."""
    return jnp.full(shape, math.log(math.expm1(0.8)))


def _first_negative(key: Array, shape: tuple[int, ...]) -> Array:
    """The number whose softplus, with `BETA`, is 0.8."""
    return jnp.full(shape, math.log(math.expm1(0.8 - BETA)))


class XIELU(FeedForward):
    """`down(xielu(up(x)))` (arXiv:2411.13010): `a x^2 + x / 2` above 0, `b (exp(x) - 1 - x) + x / 2` below, where a and
    b are softplus of `alpha_p`, and of `alpha_n` plus 0.5 (Apertus)."""

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """The part of a plain feed-forward, and two numbers."""
        plain = Plain.declare(model)
        learned = {
            "alpha_p": vector((1,), ("norm",), _first_positive), "alpha_n": vector((1,), ("norm",), _first_negative)
        }  # fmt: skip
        return replace(plain, weights=Weights({**plain.weights, **learned}))

    def activate(self, *hidden: jax.Array) -> Float[Array, "batch seq mlp"]:
        """xIELU of up, in float32, with its bias."""
        up = self.named(self.biased(hidden[0], "up"), "mlp_up")
        x = up.astype(jnp.float32)
        above, below = (jax.nn.softplus(self.weight(name).astype(jnp.float32)) for name in ("alpha_p", "alpha_n"))
        curved = jnp.where(
            x > 0, above * jnp.square(x), (BETA + below) * (jnp.expm1(jnp.minimum(x, EPSILON)) - x)
        )  # fmt: skip
        return self.named((curved + BETA * x).astype(up.dtype), "mlp_hidden")
