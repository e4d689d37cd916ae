"""Scores, probabilities and their gradients, in base 2, as all kernels compute them from the products of q and k."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Scores:
    """The function applied to `q @ k`; static."""

    scale: float
    """Factor of the scores, at least 0, since the peak of a row is taken before scaling."""
    softcap: float | None = None

    @property
    def exponent(self) -> float:
        """Factor of `capped` in an exponent of 2."""
        return LOG2_E * (self.scale if self.softcap is None else self.softcap)

    def capped(self, raw: jax.Array) -> jax.Array:
        """The scores but for a constant factor.

        tanh(x) = 1 - 2 / (exp(2 x) + 1), by two fast instructions that err by about 2^-22; what `jnp.tanh` becomes in
        these kernels, `tanh.approx`, errs by 2^-11. The reciprocal is a square because a division is a subroutine.
        """
        if self.softcap is None:
            return raw
        power = jnp.exp2(raw * (2.0 * LOG2_E * self.scale / self.softcap))
        return 1.0 - 2.0 * jnp.square(lax.rsqrt(power + 1.0))

    def probabilities(self, raw: jax.Array, lse: jax.Array) -> jax.Array:
        """Probabilities of visible pairs; `lse` in base 2, in raw's shape."""
        return jnp.exp2(self.capped(raw) * self.exponent - lse)

    def weight(self, raw: jax.Array, p: jax.Array) -> jax.Array:
        """The factor from the gradient of p, less the `delta` of its row, to that of `raw`, without `scale`.

        Called together with `probabilities`, so that `raw` need not be saved.
        """
        return p if self.softcap is None else p * (1.0 - jnp.square(self.capped(raw)))

    @staticmethod
    def statistics(
        lse: Float[Array, "batch queries heads"], delta: Float[Array, "batch queries heads"], block: int
    ) -> Float[Array, "batch heads 2 padded_queries"]:
        """Log-sum-exp in base 2 and `delta`; infinite, so that probabilities are 0, for padding and empty rows."""
        lse = jnp.where(lse == -jnp.inf, jnp.inf, lse.astype(jnp.float32) * LOG2_E)
        padding = [(0, 0), (0, 0), (0, -lse.shape[1] % block)]
        lse, delta = jnp.swapaxes(lse, 1, 2), jnp.swapaxes(delta.astype(jnp.float32), 1, 2)
        return jnp.stack([jnp.pad(lse, padding, constant_values=jnp.inf), jnp.pad(delta, padding)], 2)
