"""Attention that fills or reads the cache of a layer on its way."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import jax
from jaxtyping import Array, Float, Int

from jaxpar.attention.decode import tree_attention
from jaxpar.config.counting import attention_scale
from jaxpar.config.schema import ModelConfig
from jaxpar.generation.cache import KeyValues, LatentKeys, LayerCache, fill, indices_at, own_places, store
from jaxpar.layers.block import Attend
from jaxpar.layers.context import TokenContext
from jaxpar.layers.latent_attention import LatentAttend, LatentHeads
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import gather_context
from pallas_kernels.masks import Mask


@dataclass(eq=False)
class Attending(LatentAttend):
    """An `Attend` that passes the cache of a layer by its side."""

    capacity: int
    """Places for each row."""
    lengths: Int[Array, " batch"]
    """Tokens of each row, the last one included."""
    cache: LayerCache | None = field(default=None, init=False)

    @abstractmethod
    def __call__(self, q: jax.Array, k: jax.Array, v: jax.Array, tokens: TokenContext, *sinks: jax.Array) -> jax.Array:
        """Attention's output; afterwards `cache` holds the keys and values too."""


@dataclass(eq=False)
class Prefilling(Attending):
    """Attention over prompts."""

    attend: Attend
    dtype: str
    """In which keys and values are kept."""

    def __call__(self, q: jax.Array, k: jax.Array, v: jax.Array, tokens: TokenContext, *sinks: jax.Array) -> jax.Array:
        self.cache = KeyValues(self._held(k), self._held(v))
        return self.attend(q, k, v, tokens, *sinks)

    def of_latents(self, heads: LatentHeads, tokens: TokenContext) -> Float[Array, "batch seq heads value_dim"]:
        """Over keys and values that are expanded; what they are expanded from is kept."""
        self.cache = LatentKeys(self._held(heads.cached()))
        return self.attend(heads.query, *heads.expand(), tokens)

    def _held(self, own: Float[Array, "batch seq kv_heads width"]) -> Float[Array, "batch kv_heads places width"]:
        return fill(gather_context(own), self.capacity, self.lengths).astype(self.dtype)


@dataclass(eq=False)
class Decoding(Attending):
    """Attention of one token of each row, which stand side by side as one row."""

    model: ModelConfig
    """Of the layers of one kind."""

    @cached_property
    def _indices(self) -> Int[Array, "batch own"]:
        return indices_at(own_places(self.capacity), self.capacity, self.lengths)

    def __call__(self, q: jax.Array, k: jax.Array, v: jax.Array, tokens: TokenContext, *sinks: jax.Array) -> jax.Array:
        assert isinstance(self.cache, KeyValues), "a cache of keys and values"
        cache = KeyValues(self._stored(self.cache.key, k), self._stored(self.cache.value, v))
        self.cache = cache
        return self._over(q, cache.key, cache.value, *sinks)

    def of_latents(self, heads: LatentHeads, tokens: TokenContext) -> Float[Array, "one batch heads value_dim"]:
        """Over the cached vectors, which are never expanded: as for one key head that all query heads share."""
        assert isinstance(self.cache, LatentKeys), "a cache of latent vectors"
        cached = self._stored(self.cache.latent, heads.cached())
        self.cache = LatentKeys(cached)
        values = cached[..., : heads.latent.shape[-1]]
        return heads.absorbed(lambda query: self._over(query, cached, values))

    def _stored(self, places: jax.Array, new: Float[Array, "one batch kv_heads width"]) -> jax.Array:
        return store(places, new[0], self.capacity, self.lengths)

    def _over(
        self, q: jax.Array, keys: jax.Array, values: jax.Array, sinks: jax.Array | None = None
    ) -> Float[Array, "one batch heads value_width"]:
        model = self.model
        out = tree_attention(
            q[0], keys.swapaxes(1, 2), values.swapaxes(1, 2),
            mask=Mask(causal=True, window=model.window), q_indices=self.lengths - 1, kv_indices=self._indices,
            scale=attention_scale(model), softcap=model.attention_softcap, sinks=sinks,
        )  # fmt: skip
        return vary(out)[None]
