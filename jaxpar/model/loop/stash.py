"""Buffers of what layers keep between forward and backward, in device or in host memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
from jax import lax
from jaxtyping import Array, Float, PyTree

from jaxpar.memory.buffers import entry_on_device, put, row_major
from jaxpar.memory.streaming import is_on_host, to_host
from jaxpar.mesh.layer_order import Index


class Stash(NamedTuple):
    """Arrays that layers keep between forward and backward, [slot, layer, ...]."""

    inputs: Float[Array, "slots layers batch part embed"]
    residuals: PyTree
    """Residuals that the remat policy saves or offloads."""


type Stashes = Mapping[tuple[str, int], Stash]
"""Arrays by kind and index among its `keeps`."""


def fetch(stack: PyTree, *where: Index) -> PyTree:
    """The entry at `where` of each array in host memory, copied to the device; None in place of the others."""
    with jax.named_scope("saved_activations"):
        return jax.tree.map(lambda a: entry_on_device(a, *where) if is_on_host(a) else None, stack)


def put_x(inputs: jax.Array, x: jax.Array, *where: Index) -> tuple[jax.Array, jax.Array]:
    """`inputs` with a layer's input `x` at `where`, and `x`.

    On the device it is there before the layer reads `x`: products that add to `x` can then write over it. XLA would
    copy it for each of them, since it might be kept later.
    """
    with jax.named_scope("saved_activations"):
        if is_on_host(inputs):
            return put(inputs, to_host(row_major(x)), *where), x
        return lax.optimization_barrier((put(inputs, row_major(x), *where), x))


def written(x: jax.Array, stashes: Stashes) -> tuple[jax.Array, Stashes]:
    """`x` and `stashes`: nothing reads `x` before what is kept on the device is in its place.

    The last layer, which is not in the loop, would write to the stashes after the loss, when XLA has nothing else to
    do: what it keeps would be there twice until then.
    """
    leaves, tree = jax.tree.flatten(stashes)
    x, device = lax.optimization_barrier((x, [leaf for leaf in leaves if not is_on_host(leaf)]))
    left = iter(device)
    return x, tree.unflatten([leaf if is_on_host(leaf) else next(left) for leaf in leaves])
