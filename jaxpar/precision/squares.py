"""Squares of a stored matrix that share a scale, wherever ZeRO cuts them.

A square is of the matrix that a tensor rank multiplies with. Ranks that share that matrix store parts of one of its
dims, of any size: of 16 rows each, eight ranks hold a square. A rank finds the largest magnitudes of *runs*, neighbours
that are in one square wherever its part begins, and puts them in their place among those of the whole matrix. The
maximum of that array over these ranks has the squares of the whole matrix, the same on each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.mesh.axes import vary, varying_axes
from jaxpar.mesh.layer_order import PADDING, StackOrder


class Side(NamedTuple):
    """The inputs or the outputs of a matrix, as a rank stores them: of each of `before` numbers, a part of so many."""

    size: int
    """Of a square."""
    before: int
    """Product of the dims before the one that ranks cut."""
    part: int
    """Product of this rank's part of that dim and of the dims after it."""
    axes: tuple[str, ...] = ()
    """Over which it is cut; empty if it is whole."""
    ranks: int = 1
    """Of these axes."""

    @property
    def run(self) -> int:
        """Neighbours that are in one square, whichever part a rank has."""
        return gcd(self.part, self.size)

    @property
    def runs(self) -> int:
        """Of one part."""
        return self.part // self.run

    @property
    def squares(self) -> int:
        """Of the whole side."""
        return self.before * self.part * self.ranks // self.size

    @property
    def first(self) -> Int[Array, ""]:
        """Where this rank's runs begin among those of all ranks."""
        return lax.axis_index(self.axes) * self.runs

    def whole(self, found: Float[Array, "..."], dim: int) -> Float[Array, "..."]:
        """The largest of each square: [..., squares, ...] from [..., before, runs, ...]. 0 for runs of other ranks."""
        if self.axes:
            shape = list(found.shape)
            shape[dim + 1] *= self.ranks
            zeros = vary(jnp.zeros(shape, found.dtype), varying_axes(found))
            found = lax.dynamic_update_slice_in_dim(zeros, found, self.first, dim + 1)
        by_square = found.reshape(*found.shape[:dim], self.squares, -1, *found.shape[dim + 2 :])
        return by_square.max(dim + 1)

    def own(self, scales: Float[Array, "..."], dim: int) -> Float[Array, "..."]:
        """[..., before, runs, ...] of this rank from [..., squares, ...]."""
        each = jnp.repeat(scales, self.size // self.run, dim)
        each = each.reshape(*scales.shape[:dim], self.before, -1, *scales.shape[dim + 1 :])
        return lax.dynamic_slice_in_dim(each, self.first, self.runs, dim + 1) if self.axes else each


@dataclass(frozen=True)
class Squares:
    """The squares of a stack of matrices, of which a rank stores a part."""

    stack: int
    """Leading dims that number matrices."""
    inputs: Side
    outputs: Side

    @property
    def axes(self) -> tuple[str, ...]:
        """Over which a matrix is cut."""
        return self.inputs.axes or self.outputs.axes

    def cut(self, matrices: Float[Array, "..."]) -> Float[Array, "..."]:
        """[*stack, before, runs, run, before, runs, run] of the inputs and of the outputs."""
        sides = ((own.before, own.runs, own.run) for own in (self.inputs, self.outputs))
        return matrices.reshape(*matrices.shape[: self.stack], *(n for own in sides for n in own))

    def largest_of_runs(self, matrices: Float[Array, "..."]) -> Float[Array, "..."]:
        """The largest magnitudes of this rank's part, [*stack, before, runs, before, runs]."""
        return jnp.max(jnp.abs(self.cut(matrices)), axis=(-4, -1)).astype(jnp.float32)

    def whole(self, found: Float[Array, "..."]) -> Float[Array, "*stack inputs outputs"]:
        """Of each square of the whole matrices, the largest that this rank has `found` in its runs."""
        return self.outputs.whole(self.inputs.whole(found, self.stack), self.stack + 1)

    def of_numbers(self, scales: Float[Array, "*stack inputs outputs"]) -> Float[Array, "..."]:
        """The scales of the squares as `cut` has the numbers, with 1 in place of a run."""
        own = self.inputs.own(self.outputs.own(scales, self.stack + 1), self.stack)
        return own[..., :, :, None, :, :, None]


def squares_of(
    size: int,
    shape: tuple[int, ...],
    stack: int,
    inputs: int,
    added: tuple[int, tuple[str, ...]] | None,
    ranks: int,
) -> Squares:
    """The squares of matrices that are stored in parts.

    Args:
        size: of a square.
        shape: of a rank's part of the stack.
        stack: leading dims that number matrices.
        inputs: dims after these that a product sums over; the others are outputs.
        added: the dim that is cut, and over which axes; None if none is.
        ranks: of these axes.
    """

    def side(first: int, end: int) -> Side:
        if added is None or not first <= added[0] < end:
            return Side(size, 1, prod(shape[first:end]))
        dim, axes = added
        return Side(size, prod(shape[first:dim]), prod(shape[dim:end]), axes, ranks)

    return Squares(stack, side(stack, stack + inputs), side(stack + inputs, len(shape)))


class SquareScales(NamedTuple):
    """The scales of the codes of a kind's matrices, on a pipeline rank."""

    row: Int[Array, " layers"]
    """Of each layer of the model, its row in this rank's stack."""
    groups: Mapping[str, tuple[Float[Array, "rows inputs outputs"], ...]]
    """Of each group of matmuls, those of each matrix."""

    def of_layer(self, group: str, layer: Int[Array, ""]) -> tuple[Float[Array, "inputs outputs"], ...] | None:
        """Of the matrices of a group; None if they are quantised with each use."""
        if group not in self.groups:
            return None
        row = self.row[layer]
        return tuple(lax.dynamic_index_in_dim(own, row, keepdims=False) for own in self.groups[group])


def rows_of_layers(order: StackOrder, layers: int) -> Int[Array, " layers"]:
    """Inside the step's map: of each of the model's `layers` its row in this pipeline rank's stack, 0 for others."""
    numbers = order.numbers.reshape(order.numbers.shape[0], -1)
    rows = np.zeros((len(numbers), layers), np.int32)
    for rank, own in enumerate(numbers):
        held = np.flatnonzero(own != PADDING)
        rows[rank, own[held]] = held
    return jnp.asarray(rows)[lax.axis_index("pipe")]
