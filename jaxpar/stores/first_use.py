"""Weights that the optimizer has in another placement than a step stores them: each row comes with its first use."""

from __future__ import annotations

import jax
from jaxtyping import PyTree

from jaxpar.memory.buffers import at, put, stacked
from jaxpar.mesh.layer_order import LAYERS, Index
from jaxpar.mesh.materialize import row_to_storage
from jaxpar.mesh.parameters import Arrays
from jaxpar.runtime.store import Stack
from jaxpar.stores.sharded import Sharded


class FirstUse(Sharded):
    """A stack in optimizer placement, whose rows later passes have in storage placement."""

    def fetch(self, weights: Stack, row: Index, like: int) -> tuple[Arrays, PyTree]:
        stored = self._stored(weights, row, like)
        return self._gathered(stored), stored

    def room(self, weights: Stack) -> Stack | None:
        rows = jax.tree.leaves(weights)[0].shape[0]
        return stacked((rows,), lambda weights: self._stored(weights, 0, 0), weights, written=True)

    def keep(self, rows: Stack | None, fetched: PyTree, row: Index) -> Stack | None:
        return put(rows, fetched, row)

    def _stored(self, weights: Stack, row: Index, like: int) -> Arrays:
        return row_to_storage(at(weights, row), self.placements, part=(LAYERS, self.kind))
