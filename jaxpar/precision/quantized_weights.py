"""Matrices quantized to 8 bits once per optimizer step, from the master weights.

All microbatches, forward and backward, multiply these quantized values, and ranks gather them: one byte a number. A
matrix has one scale, or one for each of its squares (`jaxpar.precision.squares`). Layers that share a row with one that
is not quantized, on another pipeline rank, are quantized with each use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Shaped

from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import reduce_max
from jaxpar.mesh.layer_order import PADDING, StackOrder
from jaxpar.mesh.parameters import Weights
from jaxpar.mesh.quantized_stack import quantized_stack
from jaxpar.precision.matmul import WEIGHT_SCALES
from jaxpar.precision.recipe import E4M3
from jaxpar.precision.scale import quantize, scale_of
from jaxpar.precision.squares import Squares
from jaxpar.runtime.carried import StepWeights
from pallas_kernels.varying import vary_alike


@dataclass(frozen=True, eq=False)
class QuantizedMatrix:
    """A stacked matrix of which some rows are stored as quantized values."""

    path: tuple[str, ...]
    """Path of the weight in the tree of weights."""
    column: int
    """Its index among the tensors of a layer."""
    quantized: tuple[bool, ...]
    """Whether each row of a chunk is quantized in all chunks."""
    order: StackOrder
    kind: str
    """The kind of its layers."""
    group: str
    """The group of its matmuls."""
    squares: Squares
    """The parts of a row that have a scale."""

    @property
    def is_quantized(self) -> tuple[bool, ...]:
        """Whether each row of a rank's stack is stored as quantized values."""
        return self.quantized * self.order.numbers.shape[1]

    @property
    def numbers(self) -> Int[Array, " rows"]:
        """Inside the step's map: for each row of this rank's stack the number of its layer."""
        numbers = self.order.numbers.reshape(self.order.numbers.shape[0], -1)
        return jnp.asarray(numbers, jnp.int32)[lax.axis_index("pipe")]

    def quantized_rows(
        self, rows: Float[Array, "rows ..."], wide: Float[Array, "rows ..."]
    ) -> Shaped[Array, "rows ..."]:
        """Rows quantized by their scales."""
        return quantize(self.squares.cut(rows), wide, E4M3).reshape(rows.shape)


class StackScales(NamedTuple):
    """The scales of the quantized matrices of a kind, on a pipeline rank."""

    row: Int[Array, " layers"]
    """The row in this rank's stack of each layer of the model; 0 for layers of other ranks."""
    groups: dict[str, tuple[Float[Array, "rows ..."], ...]]
    """The scales of each matrix, by group of matmuls."""

    def layer_scales(self, group: str, layer: Int[Array, ""]) -> tuple[Float[Array, "..."], ...] | None:
        """The scale of each matrix of a group, or those of its squares; None if they are quantized with each use."""
        if group not in self.groups:
            return None
        row = self.row[layer]
        return tuple(lax.dynamic_index_in_dim(scales, row, keepdims=False) for scales in self.groups[group])


type ByRows = Callable[[Callable[..., jax.Array], jax.Array, tuple[jax.Array, ...], range], jax.Array]
"""Reader of a stack: a function of rows of it and of the same rows of other arrays, the stack, these arrays, and
which rows, to what the function makes of them, on the device."""


def quantized_weights(
    weights: Weights,
    matrices: Sequence[QuantizedMatrix],
    shape: tuple[int, int],
    scales: Float[Array, "layers tensors"] | None,
    storage: str,
    by_rows: ByRows,
) -> StepWeights:
    """The master `weights` with a `QuantizedStack` on the device for each of `matrices`, inside the step's map.

    Layers read the scales of the quantized values as `WEIGHT_SCALES`. The statistics are magnitudes, the same on all
    ranks of a pipeline stage, and 0 of other tensors and stages.

    Sends a maximum of one number for each matrix or square, and layer. Reads each matrix once for that and once to
    quantize it.

    Args:
        weights: in any placement; scales are of whole matrices.
        matrices: the matrices that become quantized values.
        shape: of the tables of scales, [layers, tensors].
        scales: of earlier steps; None takes those of the matrices themselves.
        storage: dtype of rows that are not quantized.
        by_rows: how a matrix is read.
    """
    leaves: dict[tuple[str, ...], Any] = flatten_dict(weights)
    stacks = {matrix.path: leaves[matrix.path] for matrix in matrices}
    amax = _largest(stacks, matrices, by_rows)
    magnitudes, by_kind = vary(jnp.zeros(shape, jnp.float32)), dict[str, StackScales]()
    for matrix in matrices:
        stack, largest, numbers = stacks[matrix.path], amax[matrix.path], matrix.numbers
        padding = numbers == PADDING
        if scales is None:
            scale = scale_of(largest, E4M3)
        else:
            scale = jnp.where(padding, 1.0, scales[numbers, matrix.column]).reshape(largest.shape)
        quantized = partial(by_rows, matrix.quantized_rows, stack, (matrix.squares.local(scale),))
        others = partial(by_rows, lambda w: w.astype(storage), stack, ())
        leaves[matrix.path] = quantized_stack(matrix.is_quantized, quantized, others)
        if matrix.kind not in by_kind:
            rows = jnp.zeros(shape[0], jnp.int32).at[jnp.where(padding, shape[0], numbers)]
            by_kind[matrix.kind] = StackScales(rows.set(jnp.arange(len(numbers)), mode="drop"), {})
        groups = by_kind[matrix.kind].groups
        groups[matrix.group] = (*groups.get(matrix.group, ()), scale)
        observed = jnp.where(jnp.array(matrix.is_quantized) & ~padding, largest.max(tuple(range(1, largest.ndim))), 0)
        magnitudes = magnitudes.at[numbers, matrix.column].max(vary(observed))
    return StepWeights(unflatten_dict(leaves), {WEIGHT_SCALES: by_kind}, magnitudes)


def _largest(
    stacks: Mapping[tuple[str, ...], jax.Array], matrices: Sequence[QuantizedMatrix], by_rows: ByRows
) -> dict[tuple[str, ...], Float[Array, "rows ..."]]:
    """The largest magnitude of each row of each stack, or of its squares, over all ranks that hold a part of it.

    Those over the same ranks are one message.
    """
    amax: dict[tuple[str, ...], jax.Array] = {}
    alike: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for matrix in matrices:
        stack = stacks[matrix.path]
        amax[matrix.path] = matrix.squares.joined(by_rows(matrix.squares.largest, stack, (), range(stack.shape[0])))
        axes = tuple(axis for axis in sorted(matrix.squares.axes(stack)) if lax.axis_size(axis) > 1)
        alike.setdefault(axes, []).append(matrix.path)
    for axes, paths in alike.items():
        if axes:
            joined, split = ravel_pytree(vary_alike([amax[path] for path in paths]))
            amax |= dict(zip(paths, split(reduce_max(joined, axes)), strict=True))
    return amax
