"""The norm of a sharded tree, and clipping by it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpar.mesh.axes import assert_varies_over
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.parameters import Tree
from jaxpar.mesh.rules import mesh_axes_of


def global_norm(tree: Tree, layout: Tree) -> Float[Array, ""]:
    """Euclidean norm of the whole tree in float32, the same on every rank, inside `shard_map`.

    `tree` has local shards, `layout` their PartitionSpecs. Each leaf's sum of squares is added over exactly the axes
    that the leaf is sharded over: over more, copies would count twice; over fewer, shards would be left out. One
    all-reduce of a scalar for each distinct set of axes.
    """
    leaves, structure = jax.tree.flatten(tree)
    sums: dict[frozenset[str], Float[Array, ""]] = {}
    for leaf, spec in zip(leaves, structure.flatten_up_to(layout), strict=True):
        axes = mesh_axes_of(spec)
        assert_varies_over(leaf, axes, f"a leaf laid out as {spec}")
        sums[axes] = sums.get(axes, 0) + jnp.sum(jnp.square(leaf.astype(jnp.float32)))
    return jnp.sqrt(sum(reduce_sum(value, sorted(axes)) for axes, value in sums.items()))


def clip(tree: Tree, norm: Float[Array, ""], max_norm: float | None) -> Tree:
    """The tree times `min(1, max_norm / norm)`; dtypes stay. None clips nothing; a norm that is NaN makes all NaN."""
    if max_norm is None:
        return tree
    scale = jnp.minimum(1.0, max_norm / norm)
    return jax.tree.map(lambda leaf: (leaf.astype(jnp.float32) * scale).astype(leaf.dtype), tree)
