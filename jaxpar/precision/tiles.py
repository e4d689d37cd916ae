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
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Shaped

from jaxpar.mesh.collectives import gather_sequence
from jaxpar.precision.recipe import E4M3, Recipe, Tiles
from jaxpar.precision.scale import quantise, scale_of
from pallas_kernels.tiled_matmul import tiled_matmul


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


type Scales = tuple[Float[Array, "inputs outputs"], ...] | None
"""Scales of the squares of each matrix; None where matrices are quantised here."""


@dataclass(frozen=True)
class Operands:
    """The operands of a group's products, as codes."""

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

    def _tile(self, along_rows: bool) -> tuple[int, int]:
        return (self.tiles.size, 1) if along_rows else (1, self.tiles.size)

    def outputs(
        self, x: jax.Array, weights: tuple[jax.Array, ...], scales: Scales
    ) -> tuple[Float[Array, "batch seq ..."], ...]:
        """`x` [batch, part, *inputs], or the sequence that it is joined to, times each matrix [*inputs, *outputs].

        Sends codes and a scale for each tile. With `scales`, of squares, the matrices are values of codes.
        """
        inputs, codes = _flat(x).shape[2], self.inputs(x, by_token=False)
        pairs = zip(weights, scales or (None,) * len(weights), strict=True)
        each = [(w, self.weight(w, own, inputs, by_input=True)) for w, own in pairs]
        found = ((product(codes, own, (1, 0), x.dtype, self.recipe.backend), w) for w, own in each)
        return tuple(y.reshape(x.shape[0], -1, *w.shape[x.ndim - 2 :]) for y, w in found)

    def gradients(
        self, x: jax.Array, weights: tuple[jax.Array, ...], scales: Scales, dys: Sequence[jax.Array]
    ) -> tuple[Float[Array, "batch seq ..."], tuple[jax.Array, ...]]:
        """Gradients of the joined input and of each matrix. Sends what `outputs` does, in tiles along tokens."""
        inputs, backend = _flat(x).shape[2], self.recipe.backend
        codes = self.inputs(x, by_token=True)
        pairs = zip(weights, scales or (None,) * len(weights), strict=True)
        matrices = [self.weight(w, own, inputs, by_input=False) for w, own in pairs]
        terms = [
            product(self.gradient(dy, by_token=False), matrix, (1, 1), x.dtype, backend)
            for dy, matrix in zip(dys, matrices, strict=True)
        ]
        of_weight = lambda dy, w: product(codes, self.gradient(dy, by_token=True), (0, 0), w.dtype, backend)
        dws = tuple(of_weight(dy, w).reshape(w.shape) for dy, w in zip(dys, weights, strict=True))
        return sum(terms[1:], terms[0]).reshape(x.shape[0], -1, *x.shape[2:]), dws


def product(a: Codes, b: Codes, contracted: tuple[int, int], dtype: DTypeLike, backend: str) -> jax.Array:
    """The product of two matrices over one dim of each, summed in float32."""
    left, right = (
        codes if dim else Codes(*(x.T for x in codes)) for codes, dim in zip((a, b), contracted, strict=True)
    )
    return tiled_matmul(*left, *right, dtype, implementation=backend)


def _flat(x: jax.Array) -> jax.Array:
    """[batch, seq, columns]."""
    return x.reshape(*x.shape[:2], -1)


def _rows(x: jax.Array) -> jax.Array:
    """[batch * seq, columns]."""
    return x.reshape(x.shape[0] * x.shape[1], -1)


def _matrix(codes: Codes) -> Codes:
    """[batch, seq, columns] as [batch * seq, columns]: no tile is of two rows of the batch."""
    return Codes(*map(_rows, codes))
