"""Tables of which tokens look up rows: full, split by rows over the tensor axis, or in parts of each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from jaxpar.layers.context import sequence_part
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import gather_rows, join_ranks, scatter_rows, scatter_sequence, sum_over_stages
from jaxpar.mesh.materialize import gather, gather_one, to_accumulator
from jaxpar.mesh.parameters import Arrays, Nested, only
from jaxpar.mesh.placements import Placements, WeightPlacement, added_dim
from jaxpar.mesh.rules import axes_of_dim

PART = "embedding"
"""The part of the model that has tables."""


@dataclass(frozen=True, eq=False)
class Tables:
    """Tables of the decoder's input, and the rows of a microbatch's tokens in them."""

    placements: Placements
    weights: Arrays
    """In storage placement, by name."""
    lookups: Mapping[str, Int[Array, "batch seq"]]
    """For each table the index of each token's row."""

    def rows(self) -> Arrays:
        """This rank's rows of each table in compute dtype, zeros for a row that another rank has.

        Tables are gathered. Where rows travel instead (`Transport.rows`), each rank looks up its part of all ranks'
        rows.
        """
        return self._rows(self.weights, self._indices)

    def any_rows(self) -> Arrays:
        """Zeros like `rows`."""
        like = jax.eval_shape(self._rows, self.weights, self._indices)
        return jax.tree.map(lambda leaf: vary(jnp.zeros(leaf.shape, leaf.dtype)), like)

    def joined(self, rows: Arrays) -> Arrays:
        """The rows of this rank's part of the sequence: the rows that ranks have of a table that they split, summed."""
        joined = dict(rows)
        for name in rows:
            if axes := self._axes(name):
                joined[name] = scatter_sequence(rows[name])
            if "pipe" in axes:
                joined[name] = sum_over_stages(joined[name])
        return joined

    def add_gradients(self, cotangents: Arrays, gradients: Arrays) -> Arrays:
        """The tables' leaves of `gradients` (gradient placement), with the cotangents of `rows` added.

        A table's gradient sums the cotangents of all tokens that share a row: thousands for a frequent one. Autodiff
        would add them up in compute dtype, where bfloat16 stops at 256 equal terms; here the sum is float32. A gradient
        that accumulates whole is added to in place; one that is sharded is summed for this call, then scattered. Where
        rows travel (`Transport.rows`) each rank gets its part of all ranks' cotangents, and adds these in place.
        """
        dtype = self.placements.gradient.dtype

        def add(
            total: jax.Array, table: Any, rows: jax.Array, cotangent: jax.Array, placed: WeightPlacement
        ) -> jax.Array:
            added, shape = added_dim(placed.compute, placed.gradient), table.shape
            if added is not None and placed.transport.rows:
                rows, cotangent = join_ranks(rows, added[1]), scatter_rows(cotangent, added[1])
                added, shape = None, total.shape
            cotangent = cotangent.astype(jnp.float32)
            with jax.named_scope("gradients"):
                if added is None and total.dtype == jnp.float32:
                    return total.at[rows].add(cotangent, mode="drop")
                # Zeros that depend on the cotangent: XLA may make others before the loss, and hold them through it.
                zero, cotangent = lax.optimization_barrier((vary(jnp.float32(0)), cotangent))
                new = jnp.broadcast_to(zero, shape).at[rows].add(cotangent, mode="drop")
                if added is None:
                    return total + new.astype(dtype)
                return total + to_accumulator(new, placed, dtype=dtype)

        totals = {name: gradients[name] for name in self.weights if name in gradients}
        trees = self._gathered, self._indices, cotangents, self._placed
        return jax.tree.map(add, totals, *(only(tree, totals) for tree in trees))

    def _rows(self, weights: Arrays, indices: Arrays) -> Arrays:
        dtype = self.placements.compute.dtype

        def look_up(table: jax.Array, rows: jax.Array) -> jax.Array:
            return table.at[rows].get(mode="fill", fill_value=0)

        def one(weight: jax.Array, rows: jax.Array, placed: WeightPlacement) -> jax.Array:
            added = added_dim(placed.compute, placed.storage)
            if added is None or not placed.transport.rows:
                return look_up(gather_one(weight, placed, dtype=dtype), rows)
            return gather_rows(look_up(vary(weight), join_ranks(rows, added[1])).astype(dtype), added[1])

        return jax.tree.map(one, weights, indices, self._placed)

    @cached_property
    def _indices(self) -> Arrays:
        """For each table the local row of each token; an index past its end if another rank has the row."""
        return {name: vary(self._local(name, rows)) for name, rows in self.lookups.items()}

    def _local(self, name: str, rows: jax.Array) -> jax.Array:
        if not (axes := self._axes(name)):
            return sequence_part(rows)
        size = self._gathered[name].shape[0]
        local = rows - lax.axis_index(axes) * size
        return jnp.where((local >= 0) & (local < size), local, size)

    def _axes(self, name: str) -> tuple[str, ...]:
        """Mesh axes that split the rows of a table."""
        return axes_of_dim(self._placed[name].compute, 0)

    @cached_property
    def _gathered(self) -> Arrays:
        """Shapes of the tables in compute placement."""
        return jax.eval_shape(lambda weights: gather(weights, self.placements, part=PART), self.weights)

    @cached_property
    def _placed(self) -> Nested[WeightPlacement]:
        return self.placements.of(PART, self.weights)
