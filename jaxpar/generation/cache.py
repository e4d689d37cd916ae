"""The cache of keys and values: where each token's are, on which rank, and which tokens a place holds.

Each layer has arrays of its own. A kind of layers has `capacity` places for each row. The token of index i is in place
i % capacity, so a kind with a window needs no more places than the window has tokens: a new token takes the place of
the one that no query sees any more. Place p is on context rank p % context, so the ranks have equal shares of every
prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config.kinds import kind_models
from jaxpar.config.schema import ModelConfig
from jaxpar.mesh.axes import DATA_AXES

EMPTY = jnp.iinfo(jnp.int32).max
"""Index of a place that holds no token of the row: no query sees it."""


class KeyValues(NamedTuple):
    """The cache of a layer; on a device its own rows, heads and places."""

    key: Float[Array, "batch kv_heads places head_dim"]
    value: Float[Array, "batch kv_heads places head_dim"]


class LatentKeys(NamedTuple):
    """The cache of a layer with latent attention; on a device its own rows and places.

    Keys and values of all heads come from it, so every tensor rank has all of it: `tensor` is the number of ranks.
    """

    latent: Float[Array, "batch tensor places cached"]
    """The latent vector of each token and, behind it, its rotary key."""


type LayerCache = KeyValues | LatentKeys
"""Of a layer."""
type Cache = Mapping[str, Sequence[LayerCache]]
"""Of each layer of each kind."""

PARTITION = PartitionSpec(("pipe", *DATA_AXES), "tensor", "context")
"""Of keys and values. There is one pipeline stage, whose axis has size 1."""


def partition_of(model: ModelConfig) -> LayerCache:
    """The partitions of the cache of a layer, of a model whose layers are all alike."""
    kind: Any = KeyValues if model.latent_attention is None else LatentKeys
    return kind(*[PARTITION] * len(kind._fields))


def capacities(model: ModelConfig, tokens: int, context: int) -> dict[str, int]:
    """Places of each kind for rows of at most `tokens` tokens, a multiple of the context ranks."""
    windows = {kind: own.window for kind, own in kind_models(model).items()}
    needed = {kind: tokens if window is None else min(window, tokens) for kind, window in windows.items()}
    return {kind: -(-places // context) * context for kind, places in needed.items()}


def own_places(capacity: int) -> Int[Array, " own"]:
    """The places that this context rank has."""
    ranks = lax.axis_size("context")
    return jnp.arange(capacity // ranks) * ranks + lax.axis_index("context")


def indices_at(places: Int[Array, " own"], capacity: int, lengths: Int[Array, " batch"]) -> Int[Array, "batch own"]:
    """The index of the token in each place once rows have `lengths` tokens; `EMPTY` for none."""
    last = lengths[:, None] - 1
    index = last - (last - places) % capacity
    return jnp.where(index >= 0, index, EMPTY)


def fill(
    own: Float[Array, "batch seq kv_heads head_dim"], capacity: int, lengths: Int[Array, " batch"]
) -> Float[Array, "batch kv_heads places head_dim"]:
    """This rank's places after a prompt, from keys or values of all its tokens in the order of their indices."""
    index = indices_at(own_places(capacity), capacity, lengths)
    held = index != EMPTY
    entries = jnp.take_along_axis(own, jnp.where(held, index, 0)[:, :, None, None], axis=1)
    return jnp.where(held[:, :, None, None], entries, jnp.zeros((), own.dtype)).swapaxes(1, 2)


def store(
    places: Float[Array, "batch kv_heads places head_dim"],
    new: Float[Array, "batch kv_heads head_dim"],
    capacity: int,
    lengths: Int[Array, " batch"],
) -> Float[Array, "batch kv_heads places head_dim"]:
    """`places` with the last token's keys or values in their place, on the rank that has it."""
    ranks, batch = lax.axis_size("context"), jnp.arange(new.shape[0])
    place = (lengths - 1) % capacity
    mine: Bool[Array, " batch"] = place % ranks == lax.axis_index("context")
    at = batch, slice(None), place // ranks
    return places.at[at].set(jnp.where(mine[:, None, None], new.astype(places.dtype), places[at]))
