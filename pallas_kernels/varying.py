"""Varying types of values inside `jax.shard_map(..., check_vma=True)`: which mesh axes a value may differ over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax
from jax import lax

_EVERYWHERE: ContextVar[frozenset[str]] = ContextVar("everywhere", default=frozenset())


@contextmanager
def varying_everywhere(axes: frozenset[str]) -> Iterator[None]:
    """A program traced inside has no message over `axes`: its arrays may all differ between their ranks, so that
    `vary_over` adds these axes, and `varying_axes` leaves them out."""
    token = _EVERYWHERE.set(axes)
    try:
        yield
    finally:
        _EVERYWHERE.reset(token)


def varying_axes(x: jax.Array) -> frozenset[str]:
    """Mesh axes over which `x` may differ between ranks, as its type says; empty outside `shard_map`."""
    return _all_varying(x) - _EVERYWHERE.get()


def _all_varying(x: jax.Array) -> frozenset[str]:
    return frozenset(jax.typeof(x).manual_axis_type.varying)


def vary_over[Tree](tree: Tree, axes: frozenset[str]) -> Tree:
    """Type every array of `tree` as varying over (at least) `axes`. No data moves; the derivative is a sum."""

    axes = axes | _EVERYWHERE.get()

    def cast(x: jax.Array) -> jax.Array:
        missing = tuple(sorted(axes - _all_varying(x)))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, tree)


def vary_alike[Tree](tree: Tree) -> Tree:
    """Type every array of `tree` as varying over the axes that any of them varies over.

    Done before a function with its own derivative, it lets that function give all its results and cotangents one
    type, and leaves the sums over the added axes to the derivative of the cast.
    """
    return vary_over(tree, frozenset().union(*map(varying_axes, jax.tree.leaves(tree))))
