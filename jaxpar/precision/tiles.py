"""Quantised matmuls with a scale for each tile of an operand, computed where the tile is (`recipe.TILES`).

A tile is so many numbers (`Tiles.size`) along the side that a product sums over, of one row; of weights under
some recipes a square. Inputs are quantised along their columns for the output and along tokens for the weight's
gradient; gradients of outputs along columns for the input's gradient and along tokens for the weight's. Where weights
have squares, their codes are the same in both products.

Every rank holds whole tiles, so scales need no message and are those of the whole tensor. Nothing is kept for later
steps, and a product that runs again finds the scales again in the same numbers. Matrices may come as codes
(`jaxpar.precision.weight_codes`), with the scales of their squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Shaped

from jaxpar.mesh.collectives import gather_sequence, scatter_sequence
from jaxpar.precision.recipe import E4M3, Recipe, Tiles
from jaxpar.precision.scale import quantise, scale_of
from pallas_kernels.tiled_matmul import tiled_matmul
from pallas_kernels.varying import vary_alike


class Codes(NamedTuple):
    """A matrix of 8 bits, or several."""

    values: Shaped[Array, "... rows columns"]
    scales: Float[Array, "... row_tiles column_tiles"]


def in_tiles(x: Float[Array, "... rows columns"], tile: tuple[int, int], form: str) -> Codes:
    """`x` as codes, with a scale for each tile of so many rows and columns."""
    rows, columns = x.shape[-2] // tile[0], x.shape[-1] // tile[1]
    cut = x.astype(jnp.float32).reshape(*x.shape[:-2], rows, tile[0], columns, tile[1])
    scales = scale_of(jnp.max(jnp.abs(cut), axis=(-3, -1)), form)
    return Codes(quantise(cut, scales[..., :, None, :, None], form).reshape(x.shape), scales)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _How:
    recipe: Recipe
    gathers: bool
    """Whether the input is a rank's part of the sequence, which the tensor ranks join first."""

    @property
    def tiles(self) -> Tiles:
        assert self.recipe.tiles is not None, "it has scales of tiles"
        return self.recipe.tiles

    def inputs(self, x: jax.Array, *, by_token: bool) -> Codes:
        """[tokens, inputs] of the joined sequence, in tiles along the tokens or along the inputs."""
        codes = in_tiles(_flat(x), self._tile(by_token), E4M3)
        return _matrix(Codes(*map(gather_sequence, codes)) if self.gathers else codes)

    def gradient(self, dy: jax.Array, *, by_token: bool) -> Codes:
        """[tokens, outputs], in tiles along the tokens or along the outputs."""
        return _matrix(in_tiles(_flat(dy), self._tile(by_token), self.recipe.gradient))

    def weight(self, w: jax.Array, scales: jax.Array | None, inputs: int, *, by_input: bool) -> Codes:
        """[inputs, outputs], in squares, or in tiles along the inputs or along the outputs. With `scales`, of squares,
        `w` is values of codes."""
        w = w.reshape(inputs, -1)
        if scales is not None:
            return Codes(w.astype(E4M3), scales)
        return in_tiles(w, self._tile_of_weight(by_input), E4M3)

    def _tile_of_weight(self, by_input: bool) -> tuple[int, int]:
        return (self.tiles.size, self.tiles.size) if self.tiles.square else self._tile(by_input)

    def joined(self, dx: jax.Array) -> jax.Array:
        return scatter_sequence(dx) if self.gathers else dx

    def _tile(self, along_rows: bool) -> tuple[int, int]:
        return (self.tiles.size, 1) if along_rows else (1, self.tiles.size)


def products(
    x: Float[Array, "batch part *inputs"],
    weights: Sequence[Float[Array, "..."]],
    recipe: Recipe,
    exact: Bool[Array, ""] | None,
    of_codes: tuple[Float[Array, "inputs outputs"], ...] | None = None,
    *,
    gathers: bool,
) -> tuple[Float[Array, "batch seq ..."], ...]:
    """Like `jaxpar.precision.matmul.products`. Sends codes and a scale for each tile, in backward along tokens.

    With `of_codes`, scales of squares, the matrices are values of codes.
    """
    x, weights, of_codes, exact = vary_alike((x, tuple(weights), of_codes, exact))
    return _products(_How(recipe, gathers), x, weights, of_codes, exact)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _products(
    how: _How, x: jax.Array, weights: tuple[jax.Array, ...], of_codes: Any, exact: Any
) -> tuple[jax.Array, ...]:
    inputs = _flat(x).shape[2]

    def shaped(y: jax.Array, w: jax.Array) -> jax.Array:
        return y.reshape(x.shape[0], -1, *w.shape[x.ndim - 2 :])

    def quantised() -> tuple[jax.Array, ...]:
        codes = how.inputs(x, by_token=False)
        pairs = zip(weights, of_codes or (None,) * len(weights), strict=True)
        each = [(w, how.weight(w, scales, inputs, by_input=True)) for w, scales in pairs]
        return tuple(shaped(product(codes, own, (1, 0), x.dtype, how.recipe.backend), w) for w, own in each)

    def exactly() -> tuple[jax.Array, ...]:
        whole = _rows(gather_sequence(x) if how.gathers else x)
        return tuple(shaped(_dot(whole, w.reshape(inputs, -1), (1, 0), x.dtype), w) for w in weights)

    return quantised() if exact is None else lax.cond(exact, exactly, quantised)


def _forward(how: _How, x: jax.Array, weights: tuple[jax.Array, ...], of_codes: Any, exact: Any) -> Any:
    return _products(how, x, weights, of_codes, exact), (x, weights, of_codes, exact)


def _backward(how: _How, kept: Any, dys: tuple[jax.Array, ...]) -> tuple[Any, ...]:
    x, weights, of_codes, exact = kept
    inputs, pairs, backend = _flat(x).shape[2], list(zip(dys, weights, strict=True)), how.recipe.backend
    each_scales = of_codes or (None,) * len(weights)

    def of_input(terms: list[jax.Array]) -> jax.Array:
        dx = _sum(terms)
        return how.joined(dx.reshape(x.shape[0], -1, *x.shape[2:]))

    def quantised() -> tuple[jax.Array, tuple[jax.Array, ...]]:
        codes = how.inputs(x, by_token=True)
        matrices = [how.weight(w, s, inputs, by_input=False) for w, s in zip(weights, each_scales, strict=True)]
        terms = [
            product(how.gradient(dy, by_token=False), matrix, (1, 1), x.dtype, backend)
            for dy, matrix in zip(dys, matrices, strict=True)
        ]
        of_weight = lambda dy, w: product(codes, how.gradient(dy, by_token=True), (0, 0), w.dtype, backend)
        dws = [of_weight(dy, w).reshape(w.shape) for dy, w in pairs]
        return of_input(terms), tuple(dws)

    def exactly() -> tuple[jax.Array, tuple[jax.Array, ...]]:
        whole = _rows(gather_sequence(x) if how.gathers else x)
        terms = [_dot(_rows(dy), w.reshape(inputs, -1), (1, 1), x.dtype) for dy, w in pairs]
        dws = tuple(_dot(whole, _rows(dy), (0, 0), w.dtype).reshape(w.shape) for dy, w in pairs)
        return of_input(terms), dws

    dx, dws = quantised() if exact is None else lax.cond(exact, exactly, quantised)
    return dx, dws, None, None


_products.defvjp(_forward, _backward)


def product(a: Codes, b: Codes, contracted: tuple[int, int], dtype: Any, backend: str) -> jax.Array:
    """The product of two matrices over one dim of each, summed in float32."""
    left, right = (
        codes if dim else Codes(*(x.T for x in codes)) for codes, dim in zip((a, b), contracted, strict=True)
    )
    return tiled_matmul(*left, *right, dtype, implementation=backend)


def _dot(a: jax.Array, b: jax.Array, contracted: tuple[int, int], dtype: Any) -> jax.Array:
    dims = (((contracted[0],), (contracted[1],)), ((), ()))
    return lax.dot_general(a, b, dims, preferred_element_type=dtype)


def _sum(terms: list[jax.Array]) -> jax.Array:
    return sum(terms[1:], terms[0])


def _flat(x: jax.Array) -> jax.Array:
    """[batch, seq, columns]."""
    return x.reshape(*x.shape[:2], -1)


def _rows(x: jax.Array) -> jax.Array:
    """[batch * seq, columns]."""
    return x.reshape(x.shape[0] * x.shape[1], -1)


def _matrix(codes: Codes) -> Codes:
    """[batch, seq, columns] as [batch * seq, columns]: no tile is of two rows of the batch."""
    return Codes(*map(_rows, codes))
