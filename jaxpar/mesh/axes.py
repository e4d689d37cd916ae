"""The mesh axes, and which of them a value varies over."""

from __future__ import annotations

from collections.abc import Iterable

import jax

from jaxpar.config.axes import AXES, DATA_AXES, ISLANDS, MESH_AXES, ROUTED_AXES, ROUTED_AXIS, SHARD_AXES
from pallas_kernels.varying import vary_over, varying_axes

__all__ = [
    "AXES", "DATA_AXES", "ISLANDS", "MESH_AXES", "ROUTED_AXES", "ROUTED_AXIS", "SHARD_AXES", "assert_varies_over",
    "vary", "varying_axes",
]  # fmt: skip


def vary[Tree](tree: Tree, axes: Iterable[str] = AXES) -> Tree:
    """Type every array of `tree` as varying over `axes`; no data moves.

    The derivative of this cast is a sum over the axes it added. Casting the weights *before* a loss is computed
    therefore decides where their gradient is summed: see `jaxpar.mesh.materialize`.
    """
    return vary_over(tree, frozenset(axes))


def assert_varies_over(x: jax.Array, axes: Iterable[str], what: str) -> None:
    """Check at trace time that `x` varies over exactly `axes`.

    Varying types do not catch a value that every rank computes alike but is typed as varying: summed over the axis, it
    would count once per rank. A loss is checked with this before it is summed.
    """
    actual = varying_axes(x)
    assert actual == frozenset(axes), f"{what} varies over {sorted(actual)}, expected {sorted(axes)}"
