"""Stacks of which the first rows are in the host's memory (`Parted`), and stacks that are whole on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Bool

from jaxpar.memory.streaming import to_host
from jaxpar.mesh.coded import is_coded_stack
from jaxpar.mesh.layer_order import Index, Parted
from jaxpar.mesh.parameters import Arrays, Nested
from jaxpar.mesh.wire.wire import Wire
from jaxpar.model.loop.stash import at, entry_on_device, in_order, put

type Stack = Any
"""`Nested` arrays [row, ...] on the device, or `Parted`."""


def stored_row(stack: Stack, row: Index, host_rows: int, on_host: bool, dtype: DTypeLike, coded: bool) -> Arrays:
    """A row of weights, on the device; of master weights in host memory as `dtype`.

    Args:
        stack: of weights.
        row: of the whole stack.
        host_rows: how many are in host memory.
        on_host: whether this one is.
        dtype: of weights in storage placement.
        coded: whether its matrices are codes, where a stack has codes.
    """
    if not isinstance(stack, Parted):
        own = lambda leaf: leaf.row(row, coded) if is_coded_stack(leaf) else at(leaf, row)
        return jax.tree.map(own, stack, is_leaf=is_coded_stack)
    if not on_host:
        return at(stack.device, row - host_rows)
    with jax.named_scope("stored_weights"):
        return jax.tree.map(lambda a: entry_on_device(a, row).astype(dtype), stack.host)


def add_row(
    stack: Stack,
    row: Index,
    host_rows: int,
    on_host: bool,
    add: Callable[[Arrays, Index], Arrays],
    dw: Arrays,
    reduce: Callable[[jax.Array, PartitionSpec, PartitionSpec, Wire], jax.Array],
    layouts: tuple[Nested[PartitionSpec], Nested[PartitionSpec], Nested[Wire]],
    fresh: Bool[Array, ""] | bool,
) -> Stack:
    """A stack of gradients with those of a layer added to a row; the arguments are those of `stored_row`.

    Args:
        add: `(stack on the device, row) -> stack`.
        dw: the layer's gradients in compute placement, for a row in host memory.
        reduce: `(gradient of a weight, *of layouts) -> gradient` in gradient placement.
        layouts: of the weights in compute and in gradient placement, and how gradients travel.
        fresh: whether nothing has accumulated yet: host memory is then uninitialised.
    """
    if not isinstance(stack, Parted):
        return add(stack, row)
    if not on_host:
        return stack._replace(device=add(stack.device, row - host_rows))

    def send(total: jax.Array, new: jax.Array, *own: Any) -> jax.Array:
        new = reduce(new, *own)
        with jax.named_scope("gradients"):
            if fresh is not True:
                new = jnp.where(fresh, new, entry_on_device(total, row) + new)
            return put(total, to_host(in_order(new)), row)

    return stack._replace(host=jax.tree.map(send, stack.host, dw, *layouts))


def read_after(stack: Stack, dy: Any) -> tuple[Stack, Any]:
    """`stack`, of which rows in host memory are read again once `dy` is computed: the last layer's would otherwise stay
    on the device from its forward on, during the loss."""
    if not isinstance(stack, Parted):
        return stack, dy
    host, dy = lax.optimization_barrier((stack.host, dy))
    return stack._replace(host=host), dy
