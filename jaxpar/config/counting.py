"""Sizes that follow from a `ModelConfig`: heads, padded vocabulary. `jaxpar.layers.counting` counts parameters."""

from __future__ import annotations

import math
from typing import NamedTuple

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
    if model.latent_attention is not None:
        return model.latent_attention.rope_dim
    return head_dim(model) if model.rope.scaling == "proportional" else int(head_dim(model) * model.rope.partial)


class Chunk(NamedTuple):
    """The limit of chunked attention."""

    size: int


type Reach = int | Chunk | None
"""The tokens that one sees: a window, those of its chunk, or no limit."""


def reach(model: ModelConfig) -> Reach:
    """The reach of attention in layers that are all alike."""
    return model.window if model.chunk is None else Chunk(model.chunk)


def window_of(model: ModelConfig) -> int | None:
    """The window of attention, with which a chunk is one: no token sees further back than a chunk is long."""
    return model.window if model.chunk is None else model.chunk


def streams_of(model: ModelConfig) -> int:
    """Returns the number of residual streams of a model."""
    return 1 if model.altup is None else model.altup.streams


def embedding_scale(model: ModelConfig) -> float:
    """Factor of token embeddings."""
    return model.embed**0.5 if model.embedding_scale is True else float(model.embedding_scale or 1)


def attention_scale(model: ModelConfig) -> float:
    """Factor of the attention scores. Under latent attention YaRN enlarges the scores by it, as in DeepSeek's models,
    and not queries and keys, of which a part alone rotates."""
    if model.attention_scale is not None:
        return model.attention_scale
    enlarged = 1.0
    if model.latent_attention is not None and model.rope.scaling == "yarn" and model.rope.mscale_all_dim:
        enlarged = yarn_magnitude(model.rope.factor, model.rope.mscale_all_dim)
    return head_dim(model) ** -0.5 * enlarged**2


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """Factor by which YaRN enlarges queries and keys for a stretch factor (arXiv:2309.00071, equation 22)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def padded_vocab(model: ModelConfig) -> int:
    """The vocabulary size rounded up to `vocab_multiple`: the rows of the embedding and the columns of the head.

    Raises:
        UserError: `vocab` is null: it is then known from the data source only.
    """
    if model.vocab is None:
        raise UserError("model.vocab is null: set it, or take it from the data source, before sizes are computed")
    return -(-model.vocab // model.vocab_multiple) * model.vocab_multiple
