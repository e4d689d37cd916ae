"""Gradients that are complete after this backward: a layer's are summed over ranks while the next goes backward."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxpar.memory.buffers import at, put
from jaxpar.mesh.layer_order import LAYERS, Index
from jaxpar.mesh.materialize import summed_early
from jaxpar.mesh.parameters import Arrays, Nested
from jaxpar.mesh.placements import WeightPlacement
from jaxpar.runtime.passes import Accumulator
from jaxpar.runtime.store import Stack
from jaxpar.stores.sharded import Sharded


class SummedEarly(Sharded):
    """A store whose rows are complete as soon as a layer has gone backward."""

    def add(self, gradients: Stack, new: Arrays, row: Index, into: Accumulator) -> Stack:
        gradients, new = self._with_next_summed(gradients, new, row)
        return super().add(gradients, new, row, into)

    def finish(self, gradients: Stack) -> Stack:
        """With the sums over ranks of row 0, which the backward completes last."""
        summed = summed_early(at(gradients, 0), self._placed(gradients))
        keep = lambda total, new, placed: put(total, new, 0) if placed.transport.early else total
        return jax.tree.map(keep, gradients, summed, self._placed(gradients))

    def _placed(self, gradients: Stack) -> Nested[WeightPlacement]:
        return self.placements.of((LAYERS, self.kind), gradients)

    def _with_next_summed(self, gradients: Stack, dw: Arrays, row: Index) -> tuple[Stack, Arrays]:
        """(`gradients` with the sums over ranks of the row after `row`, `dw`).

        That row is complete when the backward comes to `row`. The last row has none after it: another one is summed and
        left as it was, so that all rows are one loop. `dw` are the gradients of `row`. The sums are tied between those
        of the last block and those of the first: XLA puts messages that nothing waits for at the end of a loop's turn,
        beside products with float32 results, of which it expects ten times the time that they take.
        """
        rows = jax.tree.leaves(gradients)[0].shape[0]
        if rows == 1:
            return gradients, dw
        after = (row + 1) % rows
        # What follows writes to the stack in place; without this barrier, XLA copies all of it.
        gradients, complete = lax.optimization_barrier((gradients, at(gradients, after)))
        first, last = self.blocks[0], self.blocks[-1]
        complete, of_last = lax.optimization_barrier((complete, dw.get(last, {})))
        summed = summed_early(complete, self._placed(complete))

        def one(total: jax.Array, new: jax.Array, old: jax.Array, placed: WeightPlacement) -> jax.Array:
            return put(total, jnp.where(after > 0, new, old), after) if placed.transport.early else total

        gradients = jax.tree.map(one, gradients, summed, complete, self._placed(gradients))
        gradients, of_first = lax.optimization_barrier((gradients, dw.get(first, {})))
        return gradients, dw | {name: tied for name, tied in ((last, of_last), (first, of_first)) if name in dw}


def with_early_sums(store: type[Sharded]) -> type[Sharded]:
    """A store of the weights of `store`, whose rows are complete as soon as a layer has gone backward."""
    return type(f"{store.__name__}SummedEarly", (SummedEarly, store), {})
