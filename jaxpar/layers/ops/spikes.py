"""Ops whose products take spikes, as SpikingBrain's do at inference (arXiv:2509.05276, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.layers.ops.plain import Matmul, Matrix, Ops
from jaxpar.mesh.collective_matmul import PLAIN_OVERLAP
from jaxpar.mesh.collectives import sum_over_heads


def spiked(x: Float[Array, "batch seq *inputs"], rate: float, *, split: bool) -> Float[Array, "batch seq *inputs"]:
    """Multiples of a token's threshold mean|x| / rate that are nearest to its inputs; the multiples are spike counts.

    Args:
        x: the inputs of a matmul.
        rate: spikes of an input of average size.
        split: whether tensor ranks each have a part of the inputs.
    """
    inputs = tuple(range(2, x.ndim))
    wide = x.astype(jnp.float32)
    total, count = jnp.sum(jnp.abs(wide), axis=inputs, keepdims=True), x[0, 0].size
    if split:
        total, count = sum_over_heads(total), count * lax.axis_size("tensor")
    threshold = total / (count * rate)
    threshold = jnp.where(threshold > 0, threshold, 1.0)
    return (jnp.round(wide / threshold) * threshold).astype(x.dtype)


@dataclass(frozen=True)
class SpikingMatmul(Matmul):
    """The products of a group with spikes in place of its input."""

    rate: float = field(kw_only=True)

    def gather(self, x: jax.Array, matrices: Sequence[Matrix]) -> tuple[jax.Array, ...]:
        """Implements that of `Matmul`."""
        return super().gather(spiked(x, self.rate, split=False), matrices)

    def local(self, x: jax.Array, matrices: Sequence[Matrix]) -> tuple[jax.Array, ...]:
        """Implements that of `Matmul`."""
        return super().local(spiked(x, self.rate, split=False), matrices)

    def scatter(self, x: jax.Array, matrix: Matrix) -> jax.Array:
        """Implements that of `Matmul`."""
        return super().scatter(spiked(x, self.rate, split=True), matrix)


@dataclass(frozen=True)
class SpikingOps(Ops):
    """The ops of layers that take spikes."""

    rate: float = field(kw_only=True)

    def matmul(self, group: str) -> Matmul:
        """Implements that of `Ops`."""
        return SpikingMatmul(self.overlap.get(group, PLAIN_OVERLAP), rate=self.rate)
