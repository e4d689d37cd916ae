"""Buffers with leading dims of slots and rows, written and read in place, in device or in host memory.

The memory of an array is part of its type (`jax.memory.Space`), so the same code serves both: a buffer is in the memory
of the arrays that are put into it. Between the two memories XLA copies asynchronously, a slice at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import PyTree

from jaxpar.memory.streaming import DEVICE, HOST, is_on_host, to_host
from jaxpar.mesh.axes import vary
from jaxpar.mesh.layer_order import Index


def stacked(
    lead: tuple[int, ...], function: Callable[..., PyTree], *arguments: PyTree, written: bool = False
) -> PyTree[jax.Array]:
    """Empty buffers for results of `function`, with leading dims `lead`, each in the memory of the result.

    They are zeros on the device; in host memory XLA may leave them as they were allocated. If every entry is `written`
    before it is read, GPUs leave them so too: to fill them with zeros would take as long as to write them.
    """
    traced, like = jax.make_jaxpr(function, return_shape=True)(*arguments)
    leaves, tree = jax.tree.flatten(like)

    zeros = lambda leaf, shape: vary(jnp.zeros(shape, leaf.dtype))
    on_device = (lambda leaf, shape: vary(lax.empty(shape, leaf.dtype))) if written else zeros
    types: list[Any] = traced.out_avals
    both = [(leaf, its.memory_space == HOST) for leaf, its in zip(leaves, types, strict=True)]
    # Of buffers that are alike XLA would allocate one in host memory, and copy it for the others.
    host_zeros = iter(lax.optimization_barrier([zeros(leaf, ()) for leaf, host in both if host]))

    def empty(leaf: jax.ShapeDtypeStruct, host: bool) -> jax.Array:
        shape = (*lead, *leaf.shape)
        return to_host(jnp.broadcast_to(next(host_zeros), shape)) if host else on_device(leaf, shape)

    return tree.unflatten([empty(leaf, host) for leaf, host in both])


def row_major(tree: PyTree) -> PyTree:
    """`tree` with its arrays' dims in order in memory.

    By default XLA adopts the layout that a collective prefers, a different one in each of a pipeline's loops, and
    copies the whole stash from one to the next.
    """
    return jax.tree.map(lambda a: with_layout_constraint(a, Layout(tuple(range(a.ndim)))), tree)


def entry_at(stack: PyTree, *where: Index, instead: PyTree = None) -> PyTree:
    """The entry at `where` of the leading dims of each array, in the memory of the array.

    Where `instead`, a tree like `stack`, has an array, that one; all of it is None by default.
    """
    if instead is None:
        return jax.tree.map(lambda a: _entry(a, where), stack)
    return jax.tree.map(lambda a, there: _entry(a, where) if there is None else there, stack, instead)


def entry_on_device(a: jax.Array, *where: Index) -> jax.Array:
    """The entry at `where` of the leading dims of `a`, on the device."""
    entry = _entry(a, where)
    return jax.device_put(row_major(entry), DEVICE) if is_on_host(a) else entry


def put(stack: PyTree, new: PyTree, *where: Index) -> PyTree:
    """`stack` with `new` at `where` of its leading dims; both are in the same memory."""

    def one(a: jax.Array, b: jax.Array) -> jax.Array:
        start = (*where, *[0] * (a.ndim - len(where)))
        return lax.dynamic_update_slice(a, vary(b).reshape(*[1] * len(where), *b.shape), start)

    return jax.tree.map(one, stack, new)


def _entry(a: jax.Array, where: tuple[Index, ...]) -> jax.Array:
    start = (*where, *[0] * (a.ndim - len(where)))
    sizes = (*[1] * len(where), *a.shape[len(where) :])
    return lax.dynamic_slice(a, start, sizes).reshape(a.shape[len(where) :])
