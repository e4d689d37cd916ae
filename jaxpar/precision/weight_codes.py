"""Matrices as codes of 8 bits, made once per optimizer step from the master weights.

All microbatches, forward and backward, multiply these codes, and they are what ranks gather: one byte a number. A layer
that may multiply exactly, depending on the pipeline rank, shares its rows' program with one that does not. Such rows
are stored in the dtype of the others: of a layer in FP8 they hold the codes' values, which that dtype has exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.mesh.axes import vary, varying_axes
from jaxpar.mesh.coded import coded_stack
from jaxpar.mesh.collectives import reduce_max
from jaxpar.mesh.layer_order import PADDING, StackOrder
from jaxpar.mesh.parameters import Nested, Weights
from jaxpar.precision.matmul import TOKEN_AXES
from jaxpar.precision.recipe import E4M3, Recipe
from jaxpar.precision.scale import largest_of, quantise, scale_of
from jaxpar.precision.seen import COUNTS, Seen, counts_of

WEIGHT_SCALES = "weight_scales"
"""The key of a batch with the scales of the codes, [microbatch, layers, tensors]."""


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

    @property
    def coded(self) -> tuple[bool, ...]:
        """Of each row of a rank's stack, whether it is stored as codes."""
        return tuple(own is False for own in self.exact) * self.order.numbers.shape[1]


type ByRows = Callable[[Callable[..., jax.Array], jax.Array, tuple[jax.Array, ...], range], jax.Array]
"""How a stack is read: a function of rows of it and of the same rows of other arrays, the stack, these arrays, and
which rows, to what the function makes of them, on the device."""


class WeightCodes(NamedTuple):
    """The weights of a step, and what its layers need to know about the codes among them."""

    weights: Weights
    """With a `CodedStack` on the device for each matrix."""
    scales: Float[Array, "layers tensors"]
    """Of the codes of this pipeline rank's layers; 0 elsewhere."""
    seen: Seen
    """Of each matrix that is quantised, in this pipeline rank's layers; 0 elsewhere. Magnitudes are those of all ranks,
    counts are this rank's share of a sum over all."""


def coded_weights(
    weights: Weights,
    matrices: Sequence[CodedMatrix],
    recipe: Recipe,
    exact_layers: tuple[int, int],
    shape: tuple[int, int],
    scales: Float[Array, "layers tensors"] | None,
    storage: str,
    by_rows: ByRows,
    counts: bool = False,
) -> WeightCodes:
    """The `matrices` among master `weights` as codes, inside the step's map.

    Sends a maximum of one number for each matrix and layer. Reads each matrix once for that, once for its codes, and
    once more for its counts.

    Args:
        weights: in any placement; scales are of whole matrices.
        matrices: which are coded.
        recipe: how.
        exact_layers: layers before the first number, and from the second on, are not quantised.
        shape: of the tables of scales, [layers, tensors].
        scales: of earlier steps; None takes those of the matrices themselves.
        storage: dtype of rows that are not coded.
        by_rows: how a matrix is read.
        counts: whether numbers that codes do not hold are counted.
    """
    stacks = {own.path: _at(weights, own.path) for own in matrices}
    found = _largest(stacks, by_rows)
    of_codes, of_matrices = vary((jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32)))
    of_counts = vary(jnp.zeros((*shape, len(COUNTS)), jnp.float32)) if counts else None
    for own in matrices:
        stack, largest = stacks[own.path], found[own.path]
        numbers = jnp.asarray(own.order.numbers.reshape(own.order.numbers.shape[0], -1), jnp.int32)
        numbers = numbers[lax.axis_index("pipe")]
        if scales is None:
            scale = scale_of(largest, E4M3, recipe.margin)
        else:
            scale = jnp.where(numbers == PADDING, 1.0, scales[numbers, own.column])
        wide = scale.reshape(-1, *[1] * (stack.ndim - 1))
        exact = (numbers < exact_layers[0]) | (numbers >= exact_layers[1])
        codes = partial(by_rows, partial(quantise, form=E4M3), stack, (wide,))
        others = partial(by_rows, lambda w: w.astype(storage), stack, ())
        if None in own.exact:
            others = partial(by_rows, partial(_either, dtype=storage), stack, (wide, exact.reshape(wide.shape)))
        weights = _with(weights, own.path, coded_stack(own.coded, codes, others))
        padding = numbers == PADDING
        of_codes = of_codes.at[numbers, own.column].max(vary(jnp.where(padding, 0, scale)))
        of_matrices = of_matrices.at[numbers, own.column].max(vary(jnp.where(padding | exact, 0, largest)))
        if of_counts is not None:
            counted = jnp.where((padding | exact)[:, None], 0, _counted(stack, scale, by_rows))
            of_counts = of_counts.at[numbers, own.column].add(vary(counted))
    return WeightCodes(weights, of_codes, Seen(of_matrices, of_counts))


def _either(stack: jax.Array, scale: jax.Array, exact: jax.Array, dtype: str) -> jax.Array:
    """Rows as they are where they are `exact`, and else the values of their codes."""
    return jnp.where(exact, stack, quantise(stack, scale, E4M3).astype(stack.dtype)).astype(dtype)


def _largest(
    stacks: Mapping[tuple[str, ...], jax.Array], by_rows: ByRows
) -> dict[tuple[str, ...], Float[Array, "rows"]]:
    """The largest magnitude of each row of each stack, over all ranks that hold a part of it."""
    found = {path: by_rows(jax.vmap(largest_of), own, (), range(own.shape[0])) for path, own in stacks.items()}
    split: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for path, own in found.items():
        split.setdefault(tuple(sorted(varying_axes(own) - {"pipe"})), []).append(path)
    for axes, paths in split.items():
        axes = [axis for axis in axes if lax.axis_size(axis) > 1]
        if not axes:
            continue
        joined = reduce_max(jnp.concatenate([found[path] for path in paths]), axes)
        ends = [sum(len(found[path]) for path in paths[: place + 1]) for place in range(len(paths) - 1)]
        found |= dict(zip(paths, jnp.split(joined, ends), strict=True))
    return found


def _counted(stack: jax.Array, scales: Float[Array, "rows"], by_rows: ByRows) -> Float[Array, "rows counts"]:
    """What is counted of each row of a stack, as this rank's share of a sum over all ranks: of ranks that hold the same
    part, the first has it."""
    each = jax.vmap(lambda w, scale: counts_of(w, scale, E4M3))
    counts = by_rows(each, stack, (scales,), range(stack.shape[0]))
    for axis in TOKEN_AXES:
        if axis not in varying_axes(stack):
            counts = jnp.where(lax.axis_index(axis) == 0, counts, 0)
    return counts


def _at(tree: Nested[Any], path: tuple[str, ...]) -> Any:
    for name in path:
        tree = tree[name]
    return tree


def _with(tree: Nested[Any], path: tuple[str, ...], leaf: Any) -> Nested[Any]:
    if not path:
        return leaf
    return tree | {path[0]: _with(tree[path[0]], path[1:], leaf)}
