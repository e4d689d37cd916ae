"""Matrices as codes of 8 bits, made once per optimizer step from the master weights.

All microbatches, forward and backward, multiply these codes, and they are what ranks gather: one byte a number. A
matrix has one scale, or one for each of its squares (`jaxpar.precision.squares`). A layer that may multiply exactly,
depending on the pipeline rank, shares its rows' program with one that does not. Such rows are stored in the dtype of
the others: of a quantised layer they hold the codes' values, which that dtype has exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from jaxpar.config.kinds import ALL
from jaxpar.mesh.axes import vary, varying_axes
from jaxpar.mesh.coded import coded_stack
from jaxpar.mesh.collectives import reduce_max
from jaxpar.mesh.layer_order import PADDING, StackOrder
from jaxpar.mesh.parameters import Weights
from jaxpar.precision.amax import Amax
from jaxpar.precision.matmul import WEIGHT_SCALES
from jaxpar.precision.recipe import E4M3
from jaxpar.precision.scale import largest_of, quantise, scale_of
from jaxpar.precision.squares import Squares, SquareScales, rows_of_layers
from jaxpar.runtime.carried import StepWeights
from pallas_kernels.varying import vary_alike


@dataclass(frozen=True, eq=False)
class CodedMatrix:
    """A stacked matrix whose products are quantised, at least in some layers."""

    path: tuple[str, ...]
    """In the tree of weights."""
    column: int
    """Its place among the tensors of a layer."""
    exact: tuple[bool | None, ...]
    """Of each row of a chunk, whether its layers are exceptions; None if only in some chunks."""
    order: StackOrder
    kind: str = ALL
    """Of its layers."""
    group: str = ""
    """Of its matmuls."""
    squares: Squares | None = None
    """What has a scale; None if that is the matrix."""

    @property
    def coded(self) -> tuple[bool, ...]:
        """Of each row of a rank's stack, whether it is stored as codes."""
        return tuple(own is False for own in self.exact) * self.order.numbers.shape[1]

    @property
    def numbers(self) -> Int[Array, " rows"]:
        """Inside the step's map: of each row of this rank's stack the number of its layer."""
        numbers = self.order.numbers.reshape(self.order.numbers.shape[0], -1)
        return jnp.asarray(numbers, jnp.int32)[lax.axis_index("pipe")]

    def largest(self, rows: Float[Array, "rows ..."]) -> Float[Array, "rows ..."]:
        """The largest magnitude of each row on this rank, or of each run of a square."""
        return jax.vmap(largest_of)(rows) if self.squares is None else self.squares.largest_of_runs(rows)

    def cut(self, rows: Float[Array, "rows ..."]) -> Float[Array, "rows ..."]:
        """Rows as `wide` has their scales."""
        return rows if self.squares is None else self.squares.cut(rows)

    def wide(self, scales: Float[Array, "rows ..."], dims: int) -> Float[Array, "rows ..."]:
        """Scales of rows of so many dims, with a dim for each of the rows that are `cut`."""
        return scales.reshape(-1, *[1] * (dims - 1)) if self.squares is None else self.squares.of_numbers(scales)

    def codes(self, rows: Float[Array, "rows ..."], wide: Float[Array, "rows ..."]) -> Shaped[Array, "rows ..."]:
        """Codes of rows."""
        return quantise(self.cut(rows), wide, E4M3).reshape(rows.shape)

    def either(
        self, rows: Float[Array, "rows ..."], wide: Float[Array, "rows ..."], exact: Bool[Array, " rows"], *, dtype: str
    ) -> Float[Array, "rows ..."]:
        """Rows as they are where they are `exact`, and else the values of their codes."""
        exact = exact.reshape(-1, *[1] * (rows.ndim - 1))
        return jnp.where(exact, rows, self.codes(rows, wide).astype(rows.dtype)).astype(dtype)


type ByRows = Callable[[Callable[..., jax.Array], jax.Array, tuple[jax.Array, ...], range], jax.Array]
"""How a stack is read: a function of rows of it and of the same rows of other arrays, the stack, these arrays, and
which rows, to what the function makes of them, on the device."""


def coded_weights(
    weights: Weights,
    matrices: Sequence[CodedMatrix],
    exact_layers: tuple[int, int],
    shape: tuple[int, int],
    scales: Float[Array, "layers tensors"] | None,
    storage: str,
    by_rows: ByRows,
) -> StepWeights:
    """The master `weights` with a `CodedStack` on the device for each of `matrices`, inside the step's map.

    Layers read the scales of the codes as `WEIGHT_SCALES`. The statistics are magnitudes, the same on all ranks
    of a pipeline stage, and 0 of other tensors and stages.

    Sends a maximum of one number for each matrix or square, and layer. Reads each matrix once for that and once for its
    codes.

    Args:
        weights: in any placement; scales are of whole matrices.
        matrices: which are coded.
        exact_layers: layers before the first number, and from the second on, are not quantised.
        shape: of the tables of scales, [layers, tensors].
        scales: of earlier steps; None takes those of the matrices themselves.
        storage: dtype of rows that are not coded.
        by_rows: how a matrix is read.
    """
    stacks = {own.path: _at(weights, own.path) for own in matrices}
    found = _largest(stacks, matrices, by_rows)
    of_codes, of_matrices = vary((jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32)))
    of_squares: dict[str, dict[str, tuple[jax.Array, ...]]] = {}
    for own in matrices:
        stack, largest, numbers = stacks[own.path], found[own.path], own.numbers
        if scales is None:
            scale = scale_of(largest, E4M3)
        else:
            scale = jnp.where(numbers == PADDING, 1.0, scales[numbers, own.column])
        wide = own.wide(scale, stack.ndim)
        exact = (numbers < exact_layers[0]) | (numbers >= exact_layers[1])
        codes = partial(by_rows, own.codes, stack, (wide,))
        others = partial(by_rows, lambda w: w.astype(storage), stack, ())
        if None in own.exact:
            others = partial(by_rows, partial(own.either, dtype=storage), stack, (wide, exact))
        weights = _with(weights, own.path, coded_stack(own.coded, codes, others))
        padding = numbers == PADDING
        if own.squares is None:
            of_codes = of_codes.at[numbers, own.column].max(vary(jnp.where(padding, 0, scale)))
        else:
            groups = of_squares.setdefault(own.kind, {})
            groups[own.group] = (*groups.get(own.group, ()), scale)
        largest = largest.max(tuple(range(1, largest.ndim)))
        of_matrices = of_matrices.at[numbers, own.column].max(vary(jnp.where(padding | exact, 0, largest)))
    orders = {own.kind: own.order for own in matrices}
    by_kind = {
        kind: SquareScales(rows_of_layers(orders[kind], shape[0]), groups) for kind, groups in of_squares.items()
    }
    return StepWeights(weights, {WEIGHT_SCALES: by_kind or of_codes}, Amax(of_matrices))


def _largest(
    stacks: Mapping[tuple[str, ...], jax.Array], matrices: Sequence[CodedMatrix], by_rows: ByRows
) -> dict[tuple[str, ...], Float[Array, "rows ..."]]:
    """The largest magnitude of each row of each stack, or of its squares, over all ranks that hold a part of it.

    Those over the same ranks are one message.
    """
    found: dict[tuple[str, ...], jax.Array] = {}
    split: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for own in matrices:
        stack = stacks[own.path]
        largest = by_rows(own.largest, stack, (), range(stack.shape[0]))
        found[own.path] = largest if own.squares is None else own.squares.whole(largest)
        parts = varying_axes(stack) - {"pipe"} if own.squares is None else own.squares.axes
        split.setdefault(tuple(sorted(parts)), []).append(own.path)
    for axes, paths in split.items():
        axes = [axis for axis in axes if lax.axis_size(axis) > 1]
        if not axes:
            continue
        flat = vary_alike(tuple(found[path].reshape(-1) for path in paths))
        joined = reduce_max(jnp.concatenate(flat), axes)
        ends = list(accumulate(own.size for own in flat[:-1]))
        parts = jnp.split(joined, ends)
        found |= {path: own.reshape(found[path].shape) for path, own in zip(paths, parts, strict=True)}
    return found


def _at[Leaf](tree: PyTree[Leaf], path: tuple[str, ...]) -> Leaf:
    for name in path:
        tree = tree[name]
    return tree


def _with[Leaf](tree: PyTree[Leaf], path: tuple[str, ...], leaf: Leaf) -> PyTree[Leaf]:
    if not path:
        return leaf
    return tree | {path[0]: _with(tree[path[0]], path[1:], leaf)}
