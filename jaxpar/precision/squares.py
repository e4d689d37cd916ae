"""Squares of a stored matrix that share a scale, wherever ZeRO cuts them.

A square is of the matrix that a tensor rank multiplies with. Ranks that share that matrix store parts of one of its
dims, of any size: of 16 rows each, eight ranks hold a square. A rank finds the largest magnitudes of *runs*, neighbours
that are in one square wherever its part begins, and puts them in their place among those of the whole matrix. The
maximum of that array over these ranks has the squares of the whole matrix, the same on each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.mesh.axes import vary, varying_axes
from jaxpar.precision.scale import largest_of


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

    def joined(self, largest: Float[Array, "..."], dim: int) -> Float[Array, "..."]:
        """The largest of each square: [..., squares, ...] from [..., before, runs, ...]. 0 for runs of other ranks."""
        if self.axes:
            shape = list(largest.shape)
            shape[dim + 1] *= self.ranks
            zeros = vary(jnp.zeros(shape, largest.dtype), varying_axes(largest))
            largest = lax.dynamic_update_slice_in_dim(zeros, largest, self.first, dim + 1)
        by_square = largest.reshape(*largest.shape[:dim], self.squares, -1, *largest.shape[dim + 2 :])
        return by_square.max(dim + 1)

    def local(self, scales: Float[Array, "..."], dim: int) -> Float[Array, "..."]:
        """[..., before, runs, ...] of this rank from [..., squares, ...]."""
        each = jnp.repeat(scales, self.size // self.run, dim)
        each = each.reshape(*scales.shape[:dim], self.before, -1, *scales.shape[dim + 1 :])
        return lax.dynamic_slice_in_dim(each, self.first, self.runs, dim + 1) if self.axes else each


class FullMatrix:
    """The parts of a stack with scales, where each row has one."""

    def axes(self, stack: jax.Array) -> tuple[str, ...]:
        """The axes over which a row is cut."""
        return tuple(varying_axes(stack) - {"pipe"})

    def cut(self, matrices: Float[Array, "rows ..."]) -> Float[Array, "rows ..."]:
        """The matrices, with a dim for each of `local`."""
        return matrices

    def largest(self, matrices: Float[Array, "rows ..."]) -> Float[Array, " rows"]:
        """The largest magnitude of this rank's part of each row."""
        return jax.vmap(largest_of)(matrices)

    def joined(self, largest: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """`largest`, which is of one scale already."""
        return largest

    def local(self, scales: Float[Array, " rows"], dims: int) -> Float[Array, "rows ..."]:
        """The scales of rows of `dims` dims."""
        return scales.reshape(-1, *[1] * (dims - 1))


@dataclass(frozen=True)
class Squares(FullMatrix):
    """The squares of a stack of matrices, of which a rank stores a part."""

    stack: int
    """Leading dims that number matrices."""
    inputs: Side
    outputs: Side

    def axes(self, stack: jax.Array) -> tuple[str, ...]:
        """The axes over which a matrix is cut, beyond tensor parallelism."""
        del stack
        return self.inputs.axes or self.outputs.axes

    def cut(self, matrices: Float[Array, "..."]) -> Float[Array, "..."]:
        """[*stack, before, runs, run, before, runs, run] of the inputs and of the outputs."""
        sides = ((own.before, own.runs, own.run) for own in (self.inputs, self.outputs))
        return matrices.reshape(*matrices.shape[: self.stack], *(n for own in sides for n in own))

    def largest(self, matrices: Float[Array, "..."]) -> Float[Array, "..."]:
        """The largest magnitudes of this rank's runs, [*stack, before, runs, before, runs]."""
        return jnp.max(jnp.abs(self.cut(matrices)), axis=(-4, -1)).astype(jnp.float32)

    def joined(self, largest: Float[Array, "..."]) -> Float[Array, "*stack inputs outputs"]:
        """The largest magnitude of each square of the full matrices, as far as this rank has its runs."""
        return self.outputs.joined(self.inputs.joined(largest, self.stack), self.stack + 1)

    def local(self, scales: Float[Array, "*stack inputs outputs"], dims: int) -> Float[Array, "..."]:
        """The scales of the squares as `cut` has the numbers of `dims` dims, with 1 in place of a run."""
        del dims
        each = self.inputs.local(self.outputs.local(scales, self.stack + 1), self.stack)
        return each[..., :, :, None, :, :, None]


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
