"""Sizes that follow from a `ModelConfig`: heads, padded vocabulary, parameters."""

from __future__ import annotations

from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_counts, kind_model
from jaxpar.config.schema import ModelConfig


def kv_heads(model: ModelConfig) -> int:
    """Key and value heads."""
    return model.heads if model.kv_heads is None else model.kv_heads


def head_dim(model: ModelConfig) -> int:
    """Width of one head."""
    return model.embed // model.heads if model.head_dim is None else model.head_dim


def attention_scale(model: ModelConfig) -> float:
    """Factor of the attention scores."""
    return head_dim(model) ** -0.5 if model.attention_scale is None else model.attention_scale


def gated(model: ModelConfig) -> bool:
    """Whether the feed-forward has a third projection, the gate."""
    return model.activation in ("swiglu", "geglu")


def norms(model: ModelConfig) -> int:
    """Norms of the residual stream in a layer."""
    return 4 if model.norm_placement == "sandwich" else 2


def padded_vocab(model: ModelConfig) -> int:
    """The vocabulary size rounded up to `vocab_multiple`: the rows of the embedding and the columns of the head.

    Raises:
        UserError: `vocab` is null, so it is the data source that knows it.
    """
    if model.vocab is None:
        raise UserError("model.vocab is null: set it, or take it from the data source, before sizes are asked for")
    return -(-model.vocab // model.vocab_multiple) * model.vocab_multiple


def parameter_count(model: ModelConfig, padded: bool) -> int:
    """Number of weights, embeddings and head included (a tied head counts once).

    Args:
        model: The shapes, with `vocab` set.
        padded: Count the rows that pad the vocabulary to `vocab_multiple` too, as memory does; published counts do not.
    """
    rows = padded_vocab(model)
    if not padded and model.vocab is not None:
        rows = model.vocab
    embedding = rows * model.embed
    positions = model.max_positions * model.embed if model.position == "learned" else 0
    head = 0 if model.tied else model.embed * rows
    layers = sum(count * _layer_count(kind_model(model, kind)) for kind, count in kind_counts(model).items())
    return embedding + positions + layers + _norm_count(model) + head


def _layer_count(model: ModelConfig) -> int:
    embed, mlp, width = model.embed, model.mlp, head_dim(model)
    query, key = model.heads * width, kv_heads(model) * width
    attention = 2 * embed * query + 2 * embed * key
    if model.attention_bias:
        attention += query + 2 * key
    if model.attention_bias is True:
        attention += embed
    if model.qk_norm:
        attention += query + key if model.qk_norm == "projection" else 2 * width
    inward = 2 if gated(model) else 1
    feed_forward = (inward + 1) * embed * mlp
    if model.mlp_bias:
        feed_forward += inward * mlp + embed
    return attention + feed_forward + norms(model) * _norm_count(model)


def _norm_count(model: ModelConfig) -> int:
    return model.embed * (2 if model.norm == "layernorm" else 1)
