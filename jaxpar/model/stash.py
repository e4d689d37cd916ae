"""Buffers of what layers keep between forward and backward, written and read in place, in device or in host memory.

In which memory an array lies is part of its type (`jax.memory.Space`), so there is one way to keep things: a buffer
lies where the arrays lie that are put into it. Between the two memories XLA copies asynchronously, a slice at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from jaxpar.mesh.axes import vary
from jaxpar.mesh.layer_order import Index

DEVICE, HOST = jax.memory.Space.Device, jax.memory.Space.Host


class Stash(NamedTuple):
    """What layers keep between forward and backward, [slot, layer, ...]."""

    inputs: Float[Array, "slots layers batch part embed"]
    residuals: Any
    """What the remat policy saves, and what it offloads."""


def on_host(a: jax.Array) -> bool:
    """Whether `a` lies in pinned host memory."""
    return jax.typeof(a).memory_space == HOST


def to_host(a: jax.Array) -> jax.Array:
    """`a` in pinned host memory."""
    return jax.device_put(a, HOST)


def stacked(lead: tuple[int, ...], function: Callable[..., Any], *arguments: Any) -> Any:
    """Empty buffers for as many results of `function` as `lead` says, each in the memory that the result lies in.

    They are zeros on the device; in host memory XLA may leave them as they were allocated.
    """
    traced, like = jax.make_jaxpr(function, return_shape=True)(*arguments)
    leaves, tree = jax.tree.flatten(like)

    def empty(leaf: jax.ShapeDtypeStruct, host: bool) -> jax.Array:
        zeros = vary(jnp.zeros((*lead, *leaf.shape), leaf.dtype))
        return to_host(zeros) if host else zeros

    types: list[Any] = traced.out_avals
    made = [empty(leaf, its.memory_space == HOST) for leaf, its in zip(leaves, types, strict=True)]
    return tree.unflatten(made)


def in_order(tree: Any) -> Any:
    """`tree` with its arrays' dims in order in memory.

    Left to itself XLA takes over the layout that a collective happens to like, another in each of a pipeline's loops,
    and copies the whole stash from one to the next.
    """
    return jax.tree.map(lambda a: with_layout_constraint(a, Layout(tuple(range(a.ndim)))), tree)


def at(stack: Any, *where: Index, instead: Any = None) -> Any:
    """The entry at `where` of the leading dims of each array, in the memory that the array lies in.

    Where `instead`, a tree like `stack`, has an array, that one; all of it is None by default.
    """
    if instead is None:
        return jax.tree.map(lambda a: _entry(a, where), stack)
    return jax.tree.map(lambda a, there: _entry(a, where) if there is None else there, stack, instead)


def bring(stack: Any, *where: Index) -> Any:
    """The entry at `where` of each array in host memory, copied to the device; None in place of the others."""
    with jax.named_scope("saved_activations"):
        return jax.tree.map(lambda a: taken(a, *where) if on_host(a) else None, stack)


def taken(a: jax.Array, *where: Index) -> jax.Array:
    """The entry at `where` of the leading dims of `a`, on the device."""
    entry = _entry(a, where)
    return jax.device_put(in_order(entry), DEVICE) if on_host(a) else entry


def put(stack: Any, new: Any, *where: Index) -> Any:
    """`stack` with `new` at `where` of its leading dims; both lie in the same memory."""

    def one(a: jax.Array, b: jax.Array) -> jax.Array:
        start = (*where, *[0] * (a.ndim - len(where)))
        return lax.dynamic_update_slice(a, vary(b).reshape(*[1] * len(where), *b.shape), start)

    return jax.tree.map(one, stack, new)


def _entry(a: jax.Array, where: tuple[Index, ...]) -> jax.Array:
    start = (*where, *[0] * (a.ndim - len(where)))
    sizes = (*[1] * len(where), *a.shape[len(where) :])
    return lax.dynamic_slice(a, start, sizes).reshape(a.shape[len(where) :])
