"""Sizes that follow from a `ModelConfig`: heads, padded vocabulary. `jaxpar.layers.counting` counts parameters."""

from __future__ import annotations

from jaxpar.config.errors import UserError
from jaxpar.config.schema import ModelConfig


def kv_heads(model: ModelConfig) -> int:
    """Key and value heads; latent attention has as many as query heads."""
    return model.heads if model.kv_heads is None else model.kv_heads


def head_dim(model: ModelConfig) -> int:
    """Width of a query and of a key, in layers that are all alike."""
    if (latent := model.latent_attention) is not None:
        return latent.nope_dim + latent.rope_dim
    return model.embed // model.heads if model.head_dim is None else model.head_dim


def value_dim(model: ModelConfig) -> int:
    """Width of a value and of attention's output for a head."""
    return head_dim(model) if model.latent_attention is None else model.latent_attention.value_dim


def rotary_dim(model: ModelConfig) -> int:
    """Width of the part of a query and of a key that rotary embeddings rotate."""
    return head_dim(model) if model.latent_attention is None else model.latent_attention.rope_dim


def attention_scale(model: ModelConfig) -> float:
    """Factor of the attention scores."""
    return head_dim(model) ** -0.5 if model.attention_scale is None else model.attention_scale


def padded_vocab(model: ModelConfig) -> int:
    """The vocabulary size rounded up to `vocab_multiple`: the rows of the embedding and the columns of the head.

    Raises:
        UserError: `vocab` is null: it is then known from the data source only.
    """
    if model.vocab is None:
        raise UserError("model.vocab is null: set it, or take it from the data source, before sizes are computed")
    return -(-model.vocab // model.vocab_multiple) * model.vocab_multiple
