"""Weights and gradients in pinned host memory: each row comes with each use, and its gradients go back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxpar.memory.buffers import entry_on_device, put, row_major
from jaxpar.memory.streaming import to_host
from jaxpar.mesh.layer_order import LAYERS, Index
from jaxpar.mesh.materialize import row_to_storage
from jaxpar.mesh.parameters import Arrays
from jaxpar.runtime.passes import Accumulator, Stack
from jaxpar.stores.sharded import Sharded


class HostRows(Sharded):
    """A stack of master weights in host memory, cast to storage dtype on the device."""

    @property
    def ahead(self) -> bool:
        return True

    def again(self, weights: Stack, x: jax.Array) -> tuple[Stack, jax.Array]:
        """Without the barrier, the rows that were fetched last would stay on the device from the forward on."""
        return lax.optimization_barrier((weights, x))

    def add(self, gradients: Stack, new: Arrays, row: Index, into: Accumulator) -> Stack:
        """The first gradients do not read the row, which is uninitialized."""

        def send(total: jax.Array, new: jax.Array) -> jax.Array:
            with jax.named_scope("gradients"):
                if into.fresh is not True:
                    new = jnp.where(into.fresh, new, entry_on_device(total, row) + new)
                return put(total, to_host(row_major(new)), row)

        return jax.tree.map(send, gradients, self._accumulated(new))

    def _stored(self, weights: Stack, row: Index, like: int) -> Arrays:
        with jax.named_scope("stored_weights"):
            fetched = jax.tree.map(lambda stack: entry_on_device(stack, row), weights)
        return row_to_storage(fetched, self.placements, part=(LAYERS, self.kind))
