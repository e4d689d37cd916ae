"""The decoder's input on a mesh: its forward, and its derivative with respect to its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.context import sequence_part
from jaxpar.layers.declaration.columns import Beside, Columns, side_columns
from jaxpar.layers.declaration.weights import with_weights
from jaxpar.layers.dropout import dropout
from jaxpar.layers.inputs.input import Input, input_class
from jaxpar.mesh.axes import AXES, vary
from jaxpar.mesh.collectives import gather_rows, join_ranks, scatter_rows, scatter_sequence, sum_over_stages
from jaxpar.mesh.materialize import gather, gather_one, materialize, to_accumulator
from jaxpar.mesh.parameters import Arrays
from jaxpar.mesh.placements import Placements, WeightPlacement, added_dim, local_shape
from jaxpar.mesh.rules import axes_of_dim
from jaxpar.runtime.batch import SEED

PART = "embedding"
"""The part of the model that has the weights of the input."""


class Table(NamedTuple):
    """A table of the input whose rows tokens look up: full, or split by rows over mesh axes (`axes`)."""

    weight: jax.Array
    """The table in storage placement."""
    placed: WeightPlacement
    indices: Int[Array, "batch tokens"]
    """The row of each token in this rank's part of the table; an index past its end if another rank has the row. The
    tokens of the joined sequence if the table is split, else of this rank's part."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Mesh axes that split the rows."""
        return axes_of_dim(self.placed.compute, 0)

    def rows(self, dtype: str) -> Float[Array, "batch tokens width"]:
        """The rows of the tokens, in compute dtype; zeros for a row that another rank has.

        The table is gathered. Where rows travel instead (`Transport.rows`), each rank looks up its part of all ranks'
        rows.
        """

        def look_up(table: jax.Array, rows: jax.Array) -> jax.Array:
            return table.at[rows].get(mode="fill", fill_value=0)

        added = added_dim(self.placed.compute, self.placed.storage)
        if added is None or not self.placed.transport.rows:
            return look_up(gather_one(self.weight, self.placed, dtype=dtype), self.indices)
        return gather_rows(look_up(vary(self.weight), join_ranks(self.indices, added[1])).astype(dtype), added[1])

    def joined(self, rows: Float[Array, "batch tokens width"]) -> Float[Array, "batch part width"]:
        """The rows of this rank's part of the sequence: those that ranks have of a table that they split, summed."""
        if self.axes:
            rows = scatter_sequence(rows)
        return sum_over_stages(rows) if "pipe" in self.axes else rows

    def add_gradient(self, total: jax.Array, cotangent: jax.Array, dtype: str) -> jax.Array:
        """`total` (gradient placement), with the cotangent of `rows` added.

        A table's gradient sums the cotangents of all tokens that share a row: thousands for a frequent one. Autodiff
        would add them up in compute dtype, where bfloat16 stops at 256 equal terms; here the sum is float32. A gradient
        that accumulates unsharded is added to in place; one that is sharded is summed for this call, then scattered.
        Where rows travel (`Transport.rows`) each rank gets its part of all ranks' cotangents, and adds these in place.
        """
        rows, placed = self.indices, self.placed
        added, shape = added_dim(placed.compute, placed.gradient), _gathered_shape(placed)
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
            return total + (new.astype(dtype) if added is None else to_accumulator(new, placed, dtype=dtype))


@dataclass(frozen=True, eq=False)
class Embedding:
    """The input of the decoder as a function of its weights in storage placement, and its derivative.

    It is differentiated by `jax.vjp`: with respect to the gradient accumulators of full weights, and to rows that were
    looked up. Their cotangents are added to the gradients of the tables in place (`Table.add_gradient`), which
    autodiff, whose gradient is a new table, would not do.
    """

    model: ModelConfig
    placements: Placements
    train: bool
    """Whether dropout is on."""

    def __call__(self, weights: Arrays, batch: Mapping[str, jax.Array]) -> Float[Array, "batch part embed"]:
        """The residual stream of this rank's part of the sequence, in compute dtype."""
        tables, others = self._split(weights, batch)
        return self._stream(gather(others, self.placements, part=PART), self._rows(tables), tables, batch)

    def add(self, weights: Arrays, batch: Mapping[str, jax.Array], dx: jax.Array, gradients: Arrays) -> Arrays:
        """`gradients` (gradient placement) with those of the input added, whose cotangent is `dx`."""
        tables, others = self._split(weights, batch)
        frozen = {name: weight for name, weight in others.items() if name not in gradients}
        trained = {name: weight for name, weight in others.items() if name in gradients}

        def stream(accumulators: Arrays, rows: Arrays) -> jax.Array:
            full = gather(frozen, self.placements, part=PART)
            full |= materialize(trained, accumulators, self.placements, part=PART)
            return self._stream(full, rows, tables, batch)

        # The accumulators are zeros by contract; the accumulated values stand in for them, and are not read. The rows
        # are not looked up again where the derivative does not depend on them: XLA removes what no result needs.
        accumulators = {name: gradients[name] for name in trained}
        _, pullback = jax.vjp(stream, accumulators, self._rows(tables))
        new, cotangents = pullback(vary(dx))
        with jax.named_scope("gradients"):
            added = jax.tree.map(jnp.add, accumulators, new)
        dtype = self.placements.gradient.dtype
        trained_tables = {name: table for name, table in tables.items() if name in gradients}
        return (
            gradients
            | added
            | {
                name: table.add_gradient(gradients[name], cotangents[name], dtype)
                for name, table in trained_tables.items()
            }
        )

    @cached_property
    def _input(self) -> Input:
        return input_class(self.model)(self.model)

    def _split(self, weights: Arrays, batch: Mapping[str, jax.Array]) -> tuple[dict[str, Table], Arrays]:
        """The tables with the rows that the batch's tokens have in them, and the other weights."""
        lookups, placed = self._input.lookups(batch), self.placements.for_part(PART)
        tables = {
            name: Table(weights[name], placed[name], _local_indices(placed[name], rows))
            for name, rows in lookups.items()
        }
        return tables, {name: weight for name, weight in weights.items() if name not in lookups}

    def _rows(self, tables: Mapping[str, Table]) -> Arrays:
        return {name: table.rows(self.placements.compute.dtype) for name, table in tables.items()}

    def _stream(
        self, full: Arrays, rows: Arrays, tables: Mapping[str, Table], batch: Mapping[str, jax.Array]
    ) -> jax.Array:
        joined = {name: table.joined(rows[name]) for name, table in tables.items()}
        x, columns = self._made(with_weights(self._input, full | joined)(batch))
        if self.train and self.model.dropout:
            indices, seed = sequence_part(batch["indices"]), batch[SEED]
            x = dropout(x, self.model.dropout, seed=seed, site=0, examples=batch["examples"], indices=indices)
        return vary(self._beside.joined(x, columns))

    @cached_property
    def _beside(self) -> Beside:
        return side_columns(self.model)

    def _made(self, x: jax.Array) -> tuple[jax.Array, Columns]:
        """The residual stream, and the columns beside it that the input writes."""
        return replace(self._beside, shared=()).split(x)


def _gathered_shape(placed: WeightPlacement) -> tuple[int, ...]:
    """The shape of this rank's part of a weight in compute placement."""
    return local_shape(placed.shape, placed.compute, {axis: lax.axis_size(axis) for axis in AXES})


def _local_indices(placed: WeightPlacement, rows: Int[Array, "batch seq"]) -> Int[Array, "batch tokens"]:
    """`Table.indices` from the row of each token."""
    if not (axes := axes_of_dim(placed.compute, 0)):
        return vary(sequence_part(rows))
    size = _gathered_shape(placed)[0]
    local = rows - lax.axis_index(axes) * size
    return vary(jnp.where((local >= 0) & (local < size), local, size))
