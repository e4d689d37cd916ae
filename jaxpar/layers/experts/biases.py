"""Biases of experts: for each row the one of its expert."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def expert_of_row(group_sizes: Int[Array, " groups"], rows: int) -> Float[Array, "rows groups"]:
    """1 at the group of each row, which is 0 after the last group."""
    ends = jnp.cumsum(group_sizes)
    places = jnp.arange(rows)[:, None]
    return ((places >= ends - group_sizes) & (places < ends)).astype(jnp.float32)


def rows_of_experts(of_row: Float[Array, "rows groups"], vectors: Float[Array, "groups n"]) -> Float[Array, "rows n"]:
    """The vector of each row's group, as a product, so that the derivative has no scatter."""
    return jnp.matmul(of_row, vectors.astype(jnp.float32), precision="highest").astype(vectors.dtype)
