"""The norm of a sharded tree, weight by weight and as a whole, and clipping by it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree

from jaxpar.mesh.axes import assert_varies_over
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.mesh.rules import mesh_axes_of
from jaxpar.optim.rule import is_stacked


def squares(
    tree: PyTree, layout: PyTree, specs: PyTree, local: Callable[[PyTree], Float[Array, "..."] | None] | None = None
) -> PyTree:
    """Sum of the squares of each weight in float32, inside `shard_map`: [rows] of a stacked one, else a scalar.

    `tree` has local shards, `layout` their PartitionSpecs, `specs` their ParamSpecs. Each sum is added over exactly the
    axes that split what it sums: over more, copies would count twice; over fewer, shards would be left out. The result
    lies as `squares_layout` says. A weight whose gradient counts tokens has 0. One all-reduce for each distinct
    set of axes, of 4 bytes a row. `local` gives the local sums of a leaf that is not an array, and None of one that is.
    """
    leaves, structure = jax.tree.flatten(tree)
    together: dict[tuple[frozenset[str], frozenset[str]], dict[int, Float[Array, "..."]]] = {}
    layouts, described = structure.flatten_up_to(layout), structure.flatten_up_to(specs)
    for index, (leaf, spec, weight) in enumerate(zip(leaves, layouts, described, strict=True)):
        row_axes = mesh_axes_of(_rows(spec, weight))
        value = None if local is None else local(leaf)
        if value is None:
            assert_varies_over(leaf, mesh_axes_of(spec), f"a leaf laid out as {spec}")
            dims = tuple(range(is_stacked(weight), leaf.ndim))
            value = jnp.sum(jnp.square(leaf.astype(jnp.float32)), axis=dims)
        value = value if weight.balance_rate is None else jnp.zeros_like(value)
        together.setdefault((mesh_axes_of(spec) - row_axes, row_axes), {})[index] = value
    sums: dict[int, Float[Array, "..."]] = {}
    for (axes, _), values in together.items():
        flat = reduce_sum(jnp.concatenate([value.ravel() for value in values.values()]), sorted(axes))
        first = 0
        for index, value in values.items():
            sums[index] = flat[first : first + prod(value.shape)].reshape(value.shape)
            first += prod(value.shape)
    return structure.unflatten(sums[index] for index in range(len(leaves)))


def squares_layout(layout: PyTree, specs: PyTree) -> PyTree:
    """Partition of what `squares` returns: a stacked weight's rows are split as they are in the weight."""
    return jax.tree.map(_rows, layout, specs, is_leaf=lambda x: isinstance(x, PartitionSpec))


def global_norm(sums: PyTree, layout: PyTree) -> Float[Array, ""]:
    """Euclidean norm of the whole tree from its `squares` and their layout, the same on every rank.

    One all-reduce of a scalar where rows are split.
    """
    leaves, structure = jax.tree.flatten(sums)
    totals: dict[frozenset[str], Float[Array, ""]] = {}
    for leaf, spec in zip(leaves, structure.flatten_up_to(layout), strict=True):
        axes = mesh_axes_of(spec)
        totals[axes] = totals.get(axes, 0) + leaf.sum()
    return jnp.sqrt(sum(reduce_sum(value, sorted(axes)) for axes, value in totals.items()))


def clip(tree: PyTree, norm: Float[Array, ""], max_norm: Float[Array, ""]) -> PyTree:
    """The tree times `min(1, max_norm / norm)`; dtypes stay. A norm that is NaN makes all NaN."""
    scale = jnp.minimum(1.0, max_norm / norm)
    return jax.tree.map(lambda leaf: (leaf.astype(jnp.float32) * scale).astype(leaf.dtype), tree)


def _rows(layout: PartitionSpec, spec: ParamSpec) -> PartitionSpec:
    return PartitionSpec(*layout[: is_stacked(spec)])
