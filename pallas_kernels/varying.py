"""Varying types of values inside `jax.shard_map(..., check_vma=True)`: which mesh axes a value may differ over."""

from __future__ import annotations

import jax
from jax import lax


def varying_axes(x: jax.Array) -> frozenset[str]:
    """Mesh axes over which `x` may differ between ranks, as its type says; empty outside `shard_map`."""
    return frozenset(jax.typeof(x).manual_axis_type.varying)


def vary_over[Tree](tree: Tree, axes: frozenset[str]) -> Tree:
    """Type every array of `tree` as varying over (at least) `axes`. No data moves; the derivative is a sum."""

    def cast(x: jax.Array) -> jax.Array:
        missing = tuple(sorted(axes - varying_axes(x)))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, tree)


def vary_alike[Tree](tree: Tree) -> Tree:
    """Type every array of `tree` as varying over the axes that any of them varies over.

    Done before a function with its own derivative, it lets that function give all its results and cotangents one
    type, and leaves the sums over the added axes to the derivative of the cast.
    """
    return vary_over(tree, frozenset().union(*map(varying_axes, jax.tree.leaves(tree))))
