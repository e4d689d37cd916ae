"""Token and position embeddings, and the output head, their vocabulary split over the tensor axis."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.config.counting import padded_vocab
from jaxpar.config.schema import ModelConfig
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import gather_sequence, scatter_sequence
from jaxpar.mesh.materialize import gather, sink_gradients
from jaxpar.mesh.parameters import Tree
from jaxpar.mesh.placements import Placements
from jaxpar.model.context import sequence_part
from jaxpar.model.weights import weight


class Embedding(nnx.Module):
    """Rows of a table by token, plus rows of a second table by position where positions are learned."""

    def __init__(self, model: ModelConfig):
        self.tokens = weight((padded_vocab(model), model.embed), ("vocab", "embed"), scale=model.init_scale, decay=True)
        if model.position == "learned":
            self.positions = weight(
                (model.max_positions, model.embed), ("positions", "embed"), scale=model.init_scale, decay=True
            )


def embed_tokens(
    model: ModelConfig,
    placements: Placements,
    weights: Tree,
    sinks: Tree,
    tokens: Int[Array, "batch seq"],
    positions: Int[Array, "batch seq"],
) -> Float[Array, "batch part embed"]:
    """Embeddings of this rank's part of the sequence, in compute dtype.

    Each rank looks up the tokens of its vocabulary part; the sum over tensor ranks lands split by sequence. `weights`
    are those of `Embedding` in storage placement, `sinks` their zeros in gradient placement.
    """
    rows = padded_vocab(model) // lax.axis_size("tensor")
    local = tokens - lax.axis_index("tensor") * rows
    ids = {"tokens": jnp.where((local >= 0) & (local < rows), local, rows)}
    if "positions" in weights:
        ids["positions"] = sequence_part(positions)
    found: dict[str, jax.Array] = _table_rows(placements, weights, sinks, vary(ids))
    x = scatter_sequence(found["tokens"])
    return x + found["positions"] if "positions" in weights else x


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _table_rows(placements: Placements, weights: Tree, sinks: Tree, ids: Tree) -> Tree:
    """Rows of each table by id, zeros for an id past its end; the gradient goes to `sinks`.

    A table's gradient sums the cotangents of all tokens that share a row: thousands for a frequent one. Autodiff would
    add them up in compute dtype, where bfloat16 stops at 256 equal terms; here the sum is float32.
    """
    del sinks
    tables = gather(weights, placements, part="embedding")
    return jax.tree.map(lambda table, rows: table.at[rows].get(mode="fill", fill_value=0), tables, ids)


def _table_rows_forward(
    placements: Placements, weights: Tree, sinks: Tree, ids: Tree
) -> tuple[Tree, tuple[Tree, Tree]]:
    return _table_rows(placements, weights, sinks, ids), (weights, ids)


def _table_rows_backward(placements: Placements, kept: tuple[Tree, Tree], cotangents: Tree) -> tuple[None, Tree, None]:
    weights, ids = kept
    tables = jax.eval_shape(lambda weights: gather(weights, placements, part="embedding"), weights)

    def gradient(table: jax.ShapeDtypeStruct, rows: jax.Array, cotangent: jax.Array) -> jax.Array:
        zeros = vary(jnp.zeros(table.shape, jnp.float32))
        return zeros.at[rows].add(cotangent.astype(jnp.float32), mode="drop")

    gradients = jax.tree.map(gradient, tables, ids, cotangents)
    return None, sink_gradients(gradients, placements, part="embedding"), None


_table_rows.defvjp(_table_rows_forward, _table_rows_backward)


class Head(nnx.Module):
    """The matmul onto the vocabulary; a tied model has none and uses its embedding table."""

    def __init__(self, model: ModelConfig):
        self.weight = weight((model.embed, padded_vocab(model)), ("embed", "vocab"), scale=model.init_scale, decay=True)


def vocabulary_logits(
    x: Float[Array, "batch part embed"], table: Float[Array, "embed local_vocab"], model: ModelConfig
) -> Float[Array, "batch seq local_vocab"]:
    """Float32 logits of this rank's part of the vocabulary; columns that only pad it are minus infinity."""
    assert model.vocab is not None, "the vocabulary is known once the data is open"
    x = gather_sequence(x)
    logits = _project(x, table)
    if model.logit_softcap is not None:
        logits = model.logit_softcap * jnp.tanh(logits / model.logit_softcap)
    columns = lax.axis_index("tensor") * table.shape[1] + jnp.arange(table.shape[1])
    return jnp.where(columns < model.vocab, logits, -jnp.inf)


@jax.custom_vjp
def _project(
    x: Float[Array, "batch seq embed"], table: Float[Array, "embed local_vocab"]
) -> Float[Array, "batch seq local_vocab"]:
    """Matmul with a float32 result; its two transposes take the cotangent in compute dtype.

    Autodiff would run them on float32 operands, a third of the head's work at full speed and two thirds at a fraction.
    """
    return jnp.einsum("bse,ev->bsv", x, table, preferred_element_type=jnp.float32)


def _project_backward(kept: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, table = kept
    cotangent = cotangent.astype(x.dtype)
    return jnp.einsum("bsv,ev->bse", cotangent, table), jnp.einsum("bse,bsv->ev", x, cotangent)


_project.defvjp(lambda x, table: (_project(x, table), (x, table)), _project_backward)
