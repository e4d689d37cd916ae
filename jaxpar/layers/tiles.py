"""Work on a few tokens at a time: for functions whose wide intermediates would not fit into memory at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from jaxpar.mesh.axes import vary
from jaxpar.mesh.parameters import Arrays
from pallas_kernels.vjp_parts import custom_vjp

type Block = Callable[[Arrays, Arrays, jax.Array], jax.Array]
"""A function of each token alone: (trained weights, frozen ones, x [1, tokens, embed]) -> [1, tokens, embed]."""


def into_tiles(x: Shaped[Array, "tokens ..."], tiles: int) -> Shaped[Array, "tile tile_tokens ..."]:
    """`x` in tiles of `ceil(tokens / tiles)` tokens, the last one filled with zeros."""
    size = -(-x.shape[0] // tiles)
    missing = -x.shape[0] % size
    if missing:
        x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(-1, size, *x.shape[1:])


def from_tiles(tiles: Shaped[Array, "tile tile_tokens ..."], tokens: int) -> Shaped[Array, "tokens ..."]:
    """The inverse of `into_tiles`."""
    return tiles.reshape(-1, *tiles.shape[2:])[:tokens]


UNROLLED = 4
"""Tiles of a layer that are no loop: XLA does not know what a loop takes, and hides no message of weights beside it."""


def scan_tiles(
    step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, tiles: Any, unrolled: int = 1
) -> tuple[Any, Any]:
    """`lax.scan` over tiles; up to `unrolled` tiles are no loop."""
    return lax.scan(step, carry, tiles, unroll=jax.tree.leaves(tiles)[0].shape[0] <= unrolled)


@custom_vjp(0, 4)
def over_tiles(
    block: Block, weights: Arrays, frozen: Arrays, x: Float[Array, "tokens embed"], tiles: int
) -> Float[Array, "tokens embed"]:
    """`block` of all tokens, tile by tile: its intermediates exist for one tile at a time.

    The derivative saves the arguments, runs each tile again and adds up the gradients of the weights in float32; those
    in `frozen` have none.
    Source: ALST (arXiv:2506.13996, section 3.1).
    """
    step = lambda _, tile: (None, block(weights, frozen, tile[None])[0])
    return from_tiles(scan_tiles(step, None, into_tiles(x, tiles), UNROLLED)[1], len(x))


type _Residuals = tuple[Arrays, Arrays, jax.Array]


def _forward(block: Block, weights: Arrays, frozen: Arrays, x: jax.Array, tiles: int) -> tuple[jax.Array, _Residuals]:
    return over_tiles(block, weights, frozen, x, tiles), (weights, frozen, x)


def _backward(block: Block, tiles: int, residuals: _Residuals, dy: jax.Array) -> tuple[Arrays, None, jax.Array]:
    weights, frozen, x = residuals
    # Matrices may be as wide as their gradients, with values of the dtype of `x`: XLA stores wide ones for the loop.
    narrow = jax.tree.map(lambda w: w.astype(x.dtype), weights)

    def step(total: Arrays, tile: tuple[jax.Array, jax.Array]) -> tuple[Arrays, jax.Array]:
        x, dy = tile
        # No result needs the first of its two forwards; the second is named as a recomputation.
        trained = jax.checkpoint(lambda weights, x: block(weights, frozen, x), prevent_cse=False)
        wide = jax.tree.map(lambda values, w: values.astype(w.dtype), narrow, weights)
        dw, dx = jax.vjp(trained, wide, x[None])[1](dy[None])
        return jax.tree.map(lambda a, b: a + b.astype(jnp.float32), total, dw), dx[0]

    zeros = jax.tree.map(lambda w: vary(jnp.zeros(w.shape, jnp.float32)), weights)
    total, dx = scan_tiles(step, zeros, (into_tiles(x, tiles), into_tiles(dy, tiles)), UNROLLED)
    return jax.tree.map(lambda a, w: a.astype(w.dtype), total, weights), None, from_tiles(dx, len(x))


over_tiles.defvjp(_forward, _backward)
