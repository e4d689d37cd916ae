"""The short causal convolution of each channel before a recurrence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.config.errors import UserError
from jaxpar.layers.context import TokenContext
from jaxpar.mesh.collectives import reduce_sum, shift_context


def convolve(
    x: Float[Array, "batch seq heads width"], weight: Float[Array, "heads width taps"], tokens: TokenContext
) -> Float[Array, "batch seq heads width"]:
    """Each channel's sum over its last `taps` values, those of the same document; one message between context ranks.

    Raises `UserError` where a context rank has fewer tokens than the sum reaches back.
    """
    reach, (_, length), ranks = weight.shape[-1] - 1, tokens.segments.shape, lax.axis_size("context")
    if ranks > 1 and length < reach:
        raise UserError(
            f"parallel.context: each rank has {length} tokens of a row; expected {reach} at least, as a short "
            "convolution reaches back so far"
        )
    behind = jnp.pad(x, ((0, 0), (reach, 0), (0, 0), (0, 0)))
    segments = jnp.pad(tokens.segments, ((0, 0), (reach, 0)), constant_values=-1)
    if ranks > 1:
        rank = lax.axis_index("context")
        behind = jnp.concatenate([shift_context(x[:, -reach:], 1, wrap=False), x], axis=1)
        of_ranks = tokens.row_segments.reshape(-1, ranks, length)[:, :, -reach:]
        documents = jnp.where(rank > 0, of_ranks[:, jnp.maximum(rank - 1, 0)], -1)
        segments = jnp.concatenate([documents, tokens.segments], axis=1)

    def tap(index: int) -> jax.Array:
        same = segments[:, index : index + length] == tokens.segments
        return jnp.where(same[..., None, None], behind[:, index : index + length], 0) * weight[..., index]

    return sum((tap(index) for index in range(reach)), start=tap(reach))


def last_values(
    x: Float[Array, "batch seq heads width"], tokens: TokenContext, lengths: Int[Array, " batch"], taps: int
) -> Float[Array, "batch heads reach width"]:
    """The values of the last tokens of rows of `lengths` that the next token's sum of `taps` reaches back to; 0 before
    a row."""
    at = lengths[:, None] - (taps - 1) + jnp.arange(taps - 1)
    chosen = (tokens.indices[:, :, None] == at[:, None]).astype(x.dtype)
    return jnp.moveaxis(reduce_sum(jnp.einsum("bshw,bst->bthw", x, chosen), ("context",)), 1, 2)


def convolve_next(
    x: Float[Array, "batch heads width"],
    weight: Float[Array, "heads width taps"],
    before: Float[Array, "batch heads reach width"],
) -> tuple[Float[Array, "batch heads width"], Float[Array, "batch heads reach width"]]:
    """The sum of one more token of each row, and the values that the next one reaches back to."""
    values = jnp.concatenate([before, x[:, :, None]], axis=2)
    return jnp.einsum("bhtw,hwt->bhw", values, weight), values[:, :, 1:]
