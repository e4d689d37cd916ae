"""The six mesh axes and the bookkeeping of which of them a value varies over."""

from __future__ import annotations

from collections.abc import Iterable

import jax
from jax import lax

AXES = ("pipe", "replica", "fsdp", "expert", "context", "tensor")
"""Every mesh has all six, slowest links first; an unused one has size 1."""

DATA_AXES = ("replica", "fsdp", "expert")
"""Axes that split the rows of a batch."""

SEQUENCE_AXES = ("context", "tensor")
"""Axes that split a sequence between blocks; inside attention and the MLP only `context` does."""

SHARD_AXES = ("fsdp", "expert")
"""Axes over which ZeRO shards dense weights, gradients and optimizer state."""


def varying_axes(x: jax.Array) -> frozenset[str]:
    """Mesh axes over which `x` may differ between ranks, as its type says. Inside `shard_map` only."""
    return frozenset(jax.typeof(x).manual_axis_type.varying)


def vary[Tree](tree: Tree, axes: Iterable[str] = AXES) -> Tree:
    """Type every array of `tree` as varying over `axes`; no data moves.

    The derivative of this cast is a sum over the axes it added. Casting the weights *before* a loss is computed
    therefore decides where their gradient is summed: see `jaxpar.mesh.materialize`.
    """

    def cast(x: jax.Array) -> jax.Array:
        missing = tuple(a for a in AXES if a in set(axes) - varying_axes(x))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, tree)


def assert_varies_over(x: jax.Array, axes: Iterable[str], what: str) -> None:
    """Check at trace time that `x` varies over exactly `axes`.

    Varying types do not catch a value that every rank computes alike but is typed as varying: summed over the axis, it
    would count once per rank. A loss is checked with this before it is summed.
    """
    found = varying_axes(x)
    assert found == frozenset(axes), f"{what} varies over {sorted(found)}, expected {sorted(axes)}"
