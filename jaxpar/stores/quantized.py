"""Weights of which some matrices are codes of 8 bits, made once a step: codes are what ranks gather."""

from __future__ import annotations

import jax

from jaxpar.memory.buffers import at
from jaxpar.mesh.coded import is_coded_stack
from jaxpar.mesh.layer_order import Index
from jaxpar.mesh.parameters import Arrays
from jaxpar.runtime.store import Stack
from jaxpar.stores.sharded import Sharded


class Quantized(Sharded):
    """A stack whose matrices are `CodedStack`s. The scales come with the microbatch."""

    def _stored(self, weights: Stack, row: Index, like: int) -> Arrays:
        one = lambda leaf: leaf.row(row, leaf.coded[like]) if is_coded_stack(leaf) else at(leaf, row)
        return jax.tree.map(one, weights, is_leaf=is_coded_stack)
