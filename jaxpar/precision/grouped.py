"""Quantised products of routed experts, and those with a scale for each tile.

Recipes with a scale for a tensor are in `jaxpar.precision.grouped_by_tensor`.

Rows are sorted by expert. For the output, and for the gradient of rows, a tile is numbers of one row, as in
`jaxpar.precision.tiles`, so that a row has the same codes on every layout. The gradient of an expert's matrix sums over
the expert's rows, and a tile is so many neighbouring ones of a column, counted from the expert's first: none has rows
of two experts, and the last tile of an expert is filled up with zeros. Which rows are neighbours depends on the layout.
Scales are powers of two, so that this moves only codes of numbers that are too small for the format's full precision,
2^-14 of their tile's largest and less.

8-bit units sum along neighbouring bytes alone, so the kernel for the gradient of a matrix takes both operands
transposed: XLA writes their codes in that order. Without kernels a product is of what the codes stand for, in the
compute dtype, which has it exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from jaxpar.precision.grouped_by_tensor import (
    codes_times,
    exact_gradients,
    exact_products,
    multiplied_by,
)
from jaxpar.precision.grouped_by_tensor import products as by_tensor
from jaxpar.precision.matmul import GroupScaling
from jaxpar.precision.recipe import E4M3, Recipe, Tiles
from jaxpar.precision.tiles import Codes, Scales, in_tiles
from pallas_kernels.grouped_matmul.api import Static, request_of
from pallas_kernels.grouped_matmul.blocks import row_blocks
from pallas_kernels.grouped_matmul.registry import REGISTRY
from pallas_kernels.grouped_tiled_matmul import grouped_tiled_weight_gradients
from pallas_kernels.varying import vary_alike


class Places(NamedTuple):
    """Where rows of experts are, each expert's in whole tiles."""

    row: Int[Array, " places"]
    """The row at each place; -1 is none."""
    sizes: Int[Array, " experts"]
    """Places of each expert, a multiple of a tile."""


def grouped_products(
    x: Float[Array, "rows inputs"],
    weights: Sequence[Float[Array, "experts inputs outputs"]],
    sizes: Int[Array, " experts"],
    scaling: GroupScaling,
    *,
    inward: bool,
    implementation: str,
    expected: int,
) -> tuple[Float[Array, "rows outputs"], ...]:
    """`x` times each of the matrices of its rows' experts, and gradients, quantised alike; 0 behind the last expert.

    Sends nothing with scales of tiles or of earlier steps; else see `jaxpar.precision.grouped_by_tensor.products`.

    Args:
        x: Rows in the order of the experts.
        weights: Of one or more stacks of matrices.
        sizes: Rows of each expert.
        scaling: Of the group; its scales are those of `scales_of_experts`.
        inward: Whether tensor ranks split the outputs of the matrices; else their inputs.
        implementation: Of `pallas_kernels.grouped_matmul`, for what the codes stand for where no kernel multiplies
            codes.
        expected: Rows that are expected, as in `pallas_kernels.grouped_matmul.grouped_matmul`.
    """
    name = REGISTRY.chosen(implementation, request_of(x, weights[0], None)).name
    static = Static(name, expected, False)
    if scaling.recipe.tiles is None:
        return by_tensor(x, weights, sizes, scaling, static, inward=inward)
    scales = scaling.scales if scaling.coded else None
    arguments = x, tuple(weights), scales, sizes, scaling.exact
    return _products(_How(scaling.recipe, static), *vary_alike(arguments))


@jax.tree_util.register_static
@dataclass(frozen=True)
class _How:
    recipe: Recipe
    grouped: Static

    @property
    def tiles(self) -> Tiles:
        assert self.recipe.tiles is not None, "it has scales of tiles"
        return self.recipe.tiles

    def rows(self, x: jax.Array, form: str) -> Codes:
        """In tiles of numbers of one row."""
        return in_tiles(x, (1, self.tiles.size), form)

    def by_expert(self, x: jax.Array, places: Places, form: str) -> Codes:
        """In tiles of neighbouring rows of one expert, each in whole tiles."""
        return in_tiles(_filled(x, places), (self.tiles.size, 1), form)

    def weights(self, weights: Sequence[jax.Array], scales: Scales, *, by_input: bool) -> list[Codes]:
        """Each [experts, inputs, outputs], in squares, or in tiles along the inputs or along the outputs; with `scales`
        of squares they are values of codes."""
        if scales is not None:
            return [Codes(w.astype(E4M3), own) for w, own in zip(weights, scales, strict=True)]
        return [self._weight(w, by_input) for w in weights]

    def _weight(self, w: jax.Array, by_input: bool) -> Codes:
        return in_tiles(w, self._tile_of_weight(by_input), E4M3)

    def times(self, rows: Codes, matrices: Codes, sizes: jax.Array, dtype: DTypeLike) -> jax.Array:
        """[rows, outputs] of codes [rows, inputs] and those of matrices [experts, outputs, inputs]."""
        return codes_times(self.recipe, self.grouped, rows, matrices, sizes, dtype)

    def of_weights(self, rows: Codes, dy: Codes, sizes: jax.Array, dtype: DTypeLike) -> jax.Array:
        """[experts, inputs, outputs] of the codes of rows [places, inputs] and of gradients [places, outputs]."""
        return grouped_tiled_weight_gradients(*rows, *dy, sizes, dtype, **multiplied_by(self.recipe, self.grouped))

    def _tile_of_weight(self, by_input: bool) -> tuple[int, int]:
        size = self.tiles.size
        return (size, size) if self.tiles.square else (size, 1) if by_input else (1, size)


def _filled(x: jax.Array, places: Places) -> jax.Array:
    """[places, columns], with zeros where there is no row."""
    found = x.at[jnp.maximum(places.row, 0)].get(mode="promise_in_bounds")
    return jnp.where((places.row >= 0)[:, None], found, 0)


def in_whole_tiles(sizes: Int[Array, " experts"], rows: int, tile: int) -> Places:
    """The places of so many rows: those of each expert from the first row of a tile on."""
    found = row_blocks(sizes, rows, tile)
    within = jnp.arange(tile, dtype=jnp.int32)
    row = jnp.where(within < found.high[:, None], found.start[:, None] + within, -1)
    used = (found.high > 0)[:, None] & (found.group[:, None] == jnp.arange(sizes.shape[0]))
    return Places(row.ravel(), tile * jnp.sum(used, axis=0, dtype=jnp.int32))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _products(
    how: _How, x: jax.Array, weights: tuple[jax.Array, ...], scales: Scales, sizes: jax.Array, exact: jax.Array | None
) -> tuple[jax.Array, ...]:
    def quantised() -> tuple[jax.Array, ...]:
        rows = how.rows(x, E4M3)
        each = (Codes(*(part.mT for part in own)) for own in how.weights(weights, scales, by_input=True))
        return tuple(how.times(rows, matrices, sizes, x.dtype) for matrices in each)

    exactly = lambda: exact_products(how.grouped, x, weights, sizes)
    return quantised() if exact is None else lax.cond(exact, exactly, quantised)


def _forward[*Saved](how: _How, *arguments: *Saved) -> tuple[tuple[jax.Array, ...], tuple[*Saved]]:
    return _products(how, *arguments), arguments


def _backward(how: _How, saved: tuple[PyTree[jax.Array], ...], dys: tuple[jax.Array, ...]) -> tuple[PyTree, ...]:
    x, weights, scales, sizes, exact = saved

    def quantised() -> tuple[jax.Array, tuple[jax.Array, ...]]:
        form = how.recipe.gradient
        pairs = zip(dys, how.weights(weights, scales, by_input=False), strict=True)
        terms = [how.times(how.rows(dy, form), matrix, sizes, x.dtype) for dy, matrix in pairs]
        places = in_whole_tiles(sizes, len(x), how.tiles.size)
        rows = how.by_expert(x, places, E4M3)
        dws = [how.of_weights(rows, how.by_expert(dy, places, form), places.sizes, x.dtype) for dy in dys]
        return sum(terms[1:], terms[0]), tuple(dws)

    def exactly() -> tuple[jax.Array, tuple[jax.Array, ...]]:
        return exact_gradients(how.grouped, x, weights, sizes, dys)

    dx, dws = quantised() if exact is None else lax.cond(exact, exactly, quantised)
    return dx, dws, None, None, None


_products.defvjp(_forward, _backward)
