"""Token and position embeddings, and the output head, their vocabulary split over the tensor axis."""

from __future__ import annotations

from collections.abc import Sequence
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
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import (
    gather_rows,
    gather_sequence,
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


class Embedding(nnx.Module):
    """Rows of a table by token, plus rows of a second table by position where positions are learned."""

    def __init__(self, model: ModelConfig):
        self.tokens = _vocabulary_matrix(model, "vocab", "embed")
        if model.position == "learned":
            self.positions = weight(
                (model.max_positions, model.embed), ("positions", "embed"), scale=model.init_scale, decay=True
            )


def _vocabulary_matrix(model: ModelConfig, *axes: str) -> nnx.Param:
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


def vocab_axes(placements: Placements) -> tuple[str, ...]:
    """Mesh axes that split the vocabulary: tensor, and also pipe with `pipe_ends: shared`."""
    return axes_of_dim(placements.compute.layout["embedding"]["tokens"], 0)


def _local_rows(placements: Placements, weights: Arrays) -> int:
    table = jax.eval_shape(lambda weights: gather(weights, placements, part="embedding"), weights)["tokens"]
    return table.shape[0]


class Head(nnx.Module):
    """The matmul onto the vocabulary; a tied model has none and uses its embedding table."""

    def __init__(self, model: ModelConfig):
        self.weight = _vocabulary_matrix(model, "embed", "vocab")


def vocabulary_logits(
    x: Float[Array, "batch part embed"], table: Float[Array, "..."], model: ModelConfig, axes: Sequence[str]
) -> Float[Array, "batch seq local_vocab"]:
    """Float32 logits of this rank's part of the vocabulary, which `axes` split; padding columns are -inf.

    `table` is the head's weight [embed, local_vocab], or of a tied model the embedding's [local_vocab, embed].
    """
    return bound_logits(project(gather_sequence(x), table, model), model, axes)


def project(
    x: Float[Array, "batch seq embed"], table: Float[Array, "..."], model: ModelConfig
) -> Float[Array, "batch seq local_vocab"]:
    """The matmul onto the vocabulary, with a float32 result."""
    return jnp.einsum(f"bse,{_dims(model)}->bsv", x, table, preferred_element_type=jnp.float32)


def project_gradients(
    x: Float[Array, "batch seq embed"],
    table: Float[Array, "..."],
    cotangent: Float[Array, "batch seq local_vocab"],
    model: ModelConfig,
) -> tuple[Float[Array, "batch seq embed"], Float[Array, "..."]]:
    """Gradients of `project`: of `x` in its dtype, partial sums over the vocabulary; and of `table` in float32.

    Both matmuls take the cotangent in compute dtype. Autodiff would run them on float32 operands, a third of the
    head's work at full speed and two thirds at a fraction.
    """
    cotangent, dims = cotangent.astype(x.dtype), _dims(model)
    dx = jnp.einsum(f"bsv,{dims}->bse", cotangent, table)
    with jax.named_scope("gradients"):
        return dx, jnp.einsum(f"bse,bsv->{dims}", x, cotangent, preferred_element_type=jnp.float32)


def _dims(model: ModelConfig) -> str:
    return "ve" if model.tied else "ev"


def bound_logits(
    logits: Float[Array, "batch seq local_vocab"], model: ModelConfig, axes: Sequence[str]
) -> Float[Array, "batch seq local_vocab"]:
    """Logits with the model's cap; minus infinity in padding columns of the vocabulary, which `axes` split."""
    assert model.vocab is not None, "the vocabulary is known once the data is open"
    if model.logit_softcap is not None:
        logits = model.logit_softcap * jnp.tanh(logits / model.logit_softcap)
    columns = lax.axis_index(tuple(axes)) * logits.shape[-1] + jnp.arange(logits.shape[-1])
    return jnp.where(columns < model.vocab, logits, -jnp.inf)
