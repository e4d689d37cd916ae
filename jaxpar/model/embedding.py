"""The decoder's input on a mesh: its forward, and its derivative with respect to its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.context import sequence_part
from jaxpar.layers.declaration.weights import with_weights
from jaxpar.layers.dropout import dropout
from jaxpar.layers.inputs.input import Input, input_class
from jaxpar.mesh.axes import vary
from jaxpar.mesh.materialize import gather, materialize
from jaxpar.mesh.parameters import Arrays
from jaxpar.mesh.placements import Placements
from jaxpar.model.tables import Tables
from jaxpar.runtime.batch import SEED


@dataclass(frozen=True, eq=False)
class Embedding:
    """The input of the decoder as a function of its weights in storage placement, and its derivative.

    It is differentiated by `jax.vjp`: with respect to the gradient accumulators of full weights, and to rows that were
    looked up. Their cotangents are added to the gradients of the tables in place (`Tables.add_gradients`), which
    autodiff, whose gradient is a new table, would not do.
    """

    model: ModelConfig
    placements: Placements
    train: bool
    """Whether dropout is on."""

    def __call__(self, weights: Arrays, batch: Mapping[str, jax.Array]) -> Float[Array, "batch part embed"]:
        """The residual stream of this rank's part of the sequence, in compute dtype."""
        tables, full = self._split(weights, batch)
        return self._stream(gather(full, self.placements, part="embedding"), tables.rows(), tables, batch)

    def add(self, weights: Arrays, batch: Mapping[str, jax.Array], dx: jax.Array, gradients: Arrays) -> Arrays:
        """`gradients` (gradient placement) with those of the input added, whose cotangent is `dx`."""
        tables, full = self._split(weights, batch)
        frozen = {name: weight for name, weight in full.items() if name not in gradients}
        trained = {name: weight for name, weight in full.items() if name in gradients}

        def stream(accumulators: Arrays, rows: Arrays) -> jax.Array:
            known = gather(frozen, self.placements, part="embedding")
            known |= materialize(trained, accumulators, self.placements, part="embedding")
            return self._stream(known, rows, tables, batch)

        # The accumulators are zeros by contract; the accumulated values stand in for them, and are not read.
        accumulators = {name: gradients[name] for name in trained}
        rows = tables.any_rows() if self._input.linear_in_rows else tables.rows()
        _, pullback = jax.vjp(stream, accumulators, rows)
        new, cotangents = pullback(vary(dx))
        with jax.named_scope("gradients"):
            added = jax.tree.map(jnp.add, accumulators, new)
        return gradients | added | tables.add_gradients(cotangents, gradients)

    @cached_property
    def _input(self) -> Input:
        return input_class(self.model)(self.model)

    def _split(self, weights: Arrays, batch: Mapping[str, jax.Array]) -> tuple[Tables, Arrays]:
        """The tables with the rows that the batch's tokens have in them, and the other weights."""
        lookups = self._input.lookups(batch)
        tables = Tables(self.placements, {name: weights[name] for name in lookups}, lookups)
        return tables, {name: weight for name, weight in weights.items() if name not in lookups}

    def _stream(self, full: Arrays, rows: Arrays, tables: Tables, batch: Mapping[str, jax.Array]) -> jax.Array:
        x = with_weights(self._input, full | tables.joined(rows))(batch)
        if self.train and self.model.dropout:
            indices, seed = sequence_part(batch["indices"]), batch[SEED]
            x = dropout(x, self.model.dropout, seed=seed, site=0, examples=batch["examples"], indices=indices)
        return vary(x)
