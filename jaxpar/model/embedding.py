"""Token and position embeddings, their vocabulary split over the tensor axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.config.counting import padded_vocab
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.context import sequence_part
from jaxpar.layers.declaration.weights import weight
from jaxpar.layers.dropout import dropout
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import (
    gather_rows,
    join_ranks,
    scatter_rows,
    scatter_sequence,
    sum_over_stages,
)
from jaxpar.mesh.materialize import gather, gather_one, to_accumulator
from jaxpar.mesh.parameters import Arrays
from jaxpar.mesh.placements import Placements, added_dim
from jaxpar.mesh.quantized.transport import Transport
from jaxpar.mesh.rules import axes_of_dim
from jaxpar.runtime.batch import SEED


class Embedding(nnx.Module):
    """Rows of a table by token, plus rows of a second table by position where positions are learned."""

    def __init__(self, model: ModelConfig):
        self.tokens = vocabulary_matrix(model, "vocab", "embed")
        if model.position == "learned":
            self.positions = weight(
                (model.max_positions, model.embed), ("positions", "embed"), scale=model.init_scale, decay=True
            )


def vocabulary_matrix(model: ModelConfig, *axes: str) -> nnx.Param:
    """The declaration of a matrix with the logical `axes` `vocab` and `embed`, its vocabulary padded."""
    assert model.vocab is not None, "the vocabulary is known once the data is open"
    sizes = {"vocab": padded_vocab(model), "embed": model.embed}
    shape, padding = tuple(sizes[axis] for axis in axes), sizes["vocab"] - model.vocab
    return weight(shape, axes, scale=model.init_scale, decay=True, padding=padding)


def table_ids(
    placements: Placements,
    weights: Arrays,
    tokens: Int[Array, "batch seq"],
    positions: Int[Array, "batch seq"],
) -> Arrays:
    """For each table of `weights` the local row of each token; an index past its end if another rank has the row."""
    rows = _local_rows(placements, weights)
    local = tokens - lax.axis_index(vocab_axes(placements)) * rows
    ids = {"tokens": jnp.where((local >= 0) & (local < rows), local, rows)}
    if "positions" in weights:
        ids["positions"] = sequence_part(positions)
    return vary(ids)


def table_rows(placements: Placements, weights: Arrays, ids: Arrays) -> Arrays:
    """Rows of each table by id in compute dtype, zeros for an id past its end. `weights` are in storage placement.

    Tables are gathered. Where rows travel instead (`Transport.rows`), each rank looks up its part of all ranks' rows.
    """
    compute, storage, transports = (
        tree["embedding"] for tree in (placements.compute.layout, placements.storage.layout, placements.transports)
    )
    dtype = placements.compute.dtype

    def look_up(table: jax.Array, ids: jax.Array) -> jax.Array:
        return table.at[ids].get(mode="fill", fill_value=0)

    def found(weight: jax.Array, ids: jax.Array, compute: Any, storage: Any, transport: Transport) -> jax.Array:
        added = added_dim(compute, storage)
        if added is None or not transport.rows:
            return look_up(gather_one(weight, compute, storage, transport, dtype=dtype), ids)
        return gather_rows(look_up(vary(weight), join_ranks(ids, added[1])).astype(dtype), added[1])

    return jax.tree.map(found, weights, ids, compute, storage, transports)


def join_rows(placements: Placements, found: Arrays, model: ModelConfig) -> Float[Array, "batch part embed"]:
    """Embeddings of this rank's part of the sequence: the rows that ranks found, summed, plus the rows by position."""
    x = scatter_sequence(found["tokens"])
    if "pipe" in vocab_axes(placements):
        x = sum_over_stages(x)
    if model.embedding_scale:
        x = x * jnp.asarray(model.embed**0.5, x.dtype)  # rounded first, as Gemma was trained
    return x + found["positions"] if "positions" in found else x


def add_table_gradients(
    placements: Placements,
    weights: Arrays,
    ids: Arrays,
    cotangents: Arrays,
    gradients: Arrays,
) -> Arrays:
    """Add the cotangents of `table_rows` to `gradients` (gradient placement).

    A table's gradient sums the cotangents of all tokens that share a row: thousands for a frequent one. Autodiff would
    add them up in compute dtype, where bfloat16 stops at 256 equal terms; here the sum is float32. A gradient that
    accumulates whole is added to in place; one that is sharded is summed for this call, then scattered. Where rows
    travel (`Transport.rows`) each rank gets its part of all ranks' cotangents, and adds these in place.
    """
    tables = jax.eval_shape(lambda weights: gather(weights, placements, part="embedding"), weights)
    compute, gradient, transports = (
        tree["embedding"] for tree in (placements.compute.layout, placements.gradient.layout, placements.transports)
    )
    dtype = placements.gradient.dtype

    def add(total: jax.Array, table: Any, rows: jax.Array, cotangent: jax.Array, *layouts: Any) -> jax.Array:
        added, transport = added_dim(*layouts[:2]), layouts[-1]
        shape = table.shape
        if added is not None and transport.rows:
            rows, cotangent = join_ranks(rows, added[1]), scatter_rows(cotangent, added[1])
            added, shape = None, total.shape
        cotangent = cotangent.astype(jnp.float32)
        with jax.named_scope("gradients"):
            if added is None and total.dtype == jnp.float32:
                return total.at[rows].add(cotangent, mode="drop")
            # Zeros that depend on the cotangent: XLA may make others before the loss, and hold them through it.
            zero, cotangent = lax.optimization_barrier((vary(jnp.float32(0)), cotangent))
            new = jnp.broadcast_to(zero, shape).at[rows].add(cotangent, mode="drop")
            own = new.astype(dtype) if added is None else to_accumulator(new, *layouts, dtype=dtype, unstacked=False)
            return total + own

    return jax.tree.map(add, gradients, tables, ids, cotangents, compute, gradient, transports)


@dataclass(frozen=True, eq=False)
class TokenEmbedding:
    """The embedding of tokens, as a function of its weights in storage placement, and its derivative.

    It is linear in the rows of its tables, and adds their cotangents to gradients in place (`add_table_gradients`).
    """

    model: ModelConfig
    placements: Placements
    train: bool
    """Whether dropout is on."""

    def __call__(self, weights: Arrays, batch: Mapping[str, jax.Array]) -> Float[Array, "batch part embed"]:
        """The embeddings of this rank's part of the sequence, in compute dtype."""
        ids = table_ids(self.placements, weights, batch["tokens"], batch["positions"])
        return self._join(table_rows(self.placements, weights, ids), batch)

    def add(self, weights: Arrays, batch: Mapping[str, jax.Array], dx: jax.Array, gradients: Arrays) -> Arrays:
        """`gradients` (gradient placement) with those of the embedding added, whose cotangent is `dx`."""
        ids = table_ids(self.placements, weights, batch["tokens"], batch["positions"])
        # Linear in the rows that it joins, so any values will do.
        like = jax.eval_shape(lambda table, ids: table_rows(self.placements, table, ids), weights, ids)
        zeros = jax.tree.map(lambda leaf: vary(jnp.zeros(leaf.shape, leaf.dtype)), like)
        _, pullback = jax.vjp(lambda rows: self._join(rows, batch), zeros)
        (cotangents,) = pullback(vary(dx))
        return add_table_gradients(self.placements, weights, ids, cotangents, gradients)

    def _join(self, rows: Arrays, batch: Mapping[str, jax.Array]) -> Float[Array, "batch part embed"]:
        x = join_rows(self.placements, rows, self.model)
        if self.train and self.model.dropout:
            indices, seed = sequence_part(batch["indices"]), batch[SEED]
            x = dropout(x, self.model.dropout, seed=seed, site=0, examples=batch["examples"], indices=indices)
        return vary(x)


def vocab_axes(placements: Placements) -> tuple[str, ...]:
    """Mesh axes that split the vocabulary: tensor, and also pipe with `pipe_ends: shared`."""
    return axes_of_dim(placements.compute.layout["embedding"]["tokens"], 0)


def _local_rows(placements: Placements, weights: Arrays) -> int:
    table = jax.eval_shape(lambda weights: gather(weights, placements, part="embedding"), weights)["tokens"]
    return table.shape[0]
