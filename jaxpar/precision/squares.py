"""Squares of a stored matrix that share a scale, wherever ZeRO cuts them.

A square is of the matrix that a tensor rank multiplies with. Ranks that share that matrix store parts of one of its
dims, of any size: of 16 rows each, eight ranks hold a square. A rank finds the largest magnitudes of *runs*, neighbours
that are in one square wherever its part begins, and puts them in their place among those of the whole matrix. The
maximum of that array over these ranks has the squares of the full matrix, the same on each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.mesh.axes import vary, varying_axes


class Side(NamedTuple):
    """The inputs or the outputs of a matrix, as a rank stores them: a part of each of `before` numbers."""

    size: int
    """The side of a square."""
    before: int
    """Product of the dims before the one that ranks cut."""
    part: int
    """Product of this rank's part of that dim and of the dims after it."""
    axes: tuple[str, ...] = ()
    """Over which it is cut; empty if it is not."""
    ranks: int = 1
    """The number of ranks over these axes."""

    @property
    def run(self) -> int:
        """Neighbours that are in one square, whichever part a rank has."""
        return gcd(self.part, self.size)

    @property
    def squares(self) -> int:
        """Squares of all ranks' parts."""
        return self.before * self.part * self.ranks // self.size

    @property
    def square(self) -> Int[Array, " runs"]:
        """Inside the step's map: the index of the square of each run of this rank."""
        rank = lax.axis_index(self.axes) if self.axes else 0
        first = np.arange(self.before)[:, None] * self.ranks * self.part + np.arange(0, self.part, self.run)
        return (jnp.asarray(first.ravel(), jnp.int32) + rank * self.part) // self.size


@dataclass(frozen=True)
class Squares:
    """The squares of a stack of matrices, of which a rank stores a part; or each row as one square."""

    stack: int
    """Leading dims that number matrices."""
    inputs: Side
    outputs: Side
    cut_over: tuple[str, ...] | None
    """The mesh axes over which the squares are cut; None is all over which the stack varies, but pipe."""

    def axes(self, stack: jax.Array) -> tuple[str, ...]:
        """The mesh axes over which the squares of a stack are cut."""
        return tuple(varying_axes(stack) - {"pipe"}) if self.cut_over is None else self.cut_over

    def cut(self, matrices: Float[Array, "..."]) -> Float[Array, "*stack runs run runs run"]:
        """The matrices with the runs of the inputs and of the outputs as dims."""
        outputs = self.outputs.before * self.outputs.part // self.outputs.run
        return matrices.reshape(*matrices.shape[: self.stack], -1, self.inputs.run, outputs, self.outputs.run)

    def largest(self, matrices: Float[Array, "..."]) -> Float[Array, "*stack runs runs"]:
        """The largest magnitudes of this rank's runs."""
        return jnp.max(jnp.abs(self.cut(matrices)), axis=(-3, -1)).astype(jnp.float32)

    def joined(self, largest: Float[Array, "*stack runs runs"]) -> Float[Array, "*stack inputs outputs"]:
        """The largest magnitude of each square of the full matrices, as far as this rank has its runs."""
        shape = *largest.shape[: self.stack], self.inputs.squares, self.outputs.squares
        zeros = vary(jnp.zeros(shape, largest.dtype), varying_axes(largest))
        return zeros.at[..., self.inputs.square[:, None], self.outputs.square].max(largest)

    def local(self, scales: Float[Array, "*stack inputs outputs"]) -> Float[Array, "*stack runs 1 runs 1"]:
        """The scales of this rank's runs, as `cut` has the numbers."""
        return scales[..., self.inputs.square[:, None], self.outputs.square][..., :, None, :, None]


def full_rows(shape: tuple[int, ...]) -> Squares:
    """One scale for each row of a stack, of which a rank stores a part of the `shape`."""
    size = prod(shape[1:])
    return Squares(1, Side(size, 1, size), Side(1, 1, 1), None)


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

    axes = () if added is None else added[1]
    return Squares(stack, side(stack, stack + inputs), side(stack + inputs, len(shape)), axes)
