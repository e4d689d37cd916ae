"""Multi-head latent attention: keys and values of all heads are expanded from one latent vector for each token."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxpar.config import counting
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.attention import OUTPUT, QUERY
from jaxpar.layers.attention_cache import PARTITION, SlotTable, is_paged
from jaxpar.layers.block import Block, Context
from jaxpar.layers.context import TokenContext
from jaxpar.layers.declaration.activations import Activation
from jaxpar.layers.declaration.part import Core, Matmuls, Part, Weights, matrix, vector
from jaxpar.layers.norm import NORMS, rms_normalize
from jaxpar.layers.ops.plain import Ops
from jaxpar.layers.rope import rotate
from jaxpar.mesh.collectives import gather_sequence
from jaxpar.runtime.passes import Output

DOWN, QUERIES, UP, OUT = "attention_down", "attention_in", "attention_up", "attention_out"
"""The groups of matmuls, in order."""

type Latents = Float[Array, "batch part kv_rank"]
"""Latent vectors of the keys and values of all heads, for this tensor rank's part of the sequence."""
type RotaryKeys = Float[Array, "batch seq one rope_dim"]


def shape_of(model: ModelConfig) -> LatentAttentionConfig:
    """The widths of a model with latent attention."""
    assert model.latent_attention is not None, "a model with latent attention"
    return model.latent_attention


class LatentAttention(Block):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    A token's latent vector is projected from the residual stream and normalised; from it come the keys and values of
    each head. A rotary key of few numbers, the same for all heads, is appended to each key. Tensor ranks split the
    heads and hold the projections to latent vectors whole: each projects its part of the sequence, and the latent
    vectors are gathered, which are much narrower than the residual stream.
    """

    reads = ("attention_scale", "attention_softcap", "window", "causal", "attention_temperature")
    cache = PARTITION
    """The cached vector of a token is its latent vector and, behind it, its rotary key. Keys and values of all heads
    come from it, so each of the tensor ranks has all of it: [pages, tensor ranks, slots, cached]."""

    def __init__(self, model: ModelConfig, part: Part | None = None):
        super().__init__(part or self.declare(model))
        self.model = model
        self.shape = shape_of(model)
        self.epsilon = self.shape.norm_epsilon or model.norm_epsilon
        self.factors = NORMS[model.norm].factors
        assert not self.part.terms, "latent attention has no adapters"

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Projections of the residual stream are saved, `kv_latent` with the rotary key behind the latent vector;
        what is expanded is wide, and `gemm_last` recomputes it. Norms of latent vectors count as part of the matmuls
        behind them.
        """
        latent = shape_of(model)
        down, made, query, source, of_query = ("kv_down",), ("kv_latent",), "query", "", "query"
        activations = [Activation("kv_latent", ("kv_latent",), between=True)]
        if latent.query_rank is not None:
            down, made = ("query_down", *down), ("query_latent", *made)
            activations = [Activation("query_latent", ("query_latent",), between=True), *activations]
            query, source, of_query = "expanded_query", "query_latent", "query_up"
        expanded = ("expanded_key", "expanded_value")
        rotates = model.position == "rope"
        return Part(
            name="attention",
            weights=_weights(model, latent),
            activations=(
                *activations,
                Activation(query, QUERY, cheap=latent.query_rank is not None),
                Activation("expanded_key", QUERY, cheap=True),
                Activation("expanded_value", OUTPUT, cheap=True),
                Activation("attention_output", OUTPUT, core=True),
                Activation("attention_lse", ("heads",), float32=True, core=True),
            ),
            operations=(
                Matmuls(DOWN, down, inward=True, outputs=made, between=True),
                Matmuls(
                    QUERIES, (of_query,), inward=True, input=source, outputs=(query,),
                    rotated=(query,) if rotates else (), by_head=True,
                ),
                Matmuls(UP, ("key_up", "value_up"), inward=True, input="kv_latent", outputs=expanded, by_head=True),
                Core(query, keys=expanded, outputs=("attention_output", "attention_lse")),
                Matmuls(OUT, ("output",), inward=False, input="attention_output"),
            ),
        )  # fmt: skip

    def __call__(self, x: Float[Array, "batch part embed"], context: Context, ops: Ops) -> Output:
        """Attention over what is expanded, and the output."""
        query, latent, rotary_key = self._latents(x, context.tokens, ops)
        h = context.attend(query, *self._expanded(latent, rotary_key, ops), context.tokens)
        return ops.run(self, OUT, h), {}

    def paged(self, capacity: int) -> bool:
        """See `Block.paged`."""
        return is_paged(self.model, capacity)

    def decode(self, x: jax.Array, cache: PyTree, context: Context, ops: Ops) -> tuple[jax.Array, PyTree]:
        """See `Block.decode`; the cached vectors are never expanded: they are one key head of all queries."""
        assert context.rows is not None, "rows that are continued"
        query, latent, rotary_key = self._latents(x, context.tokens, ops)
        new = jnp.concatenate([gather_sequence(latent)[:, :, None], rotary_key], axis=-1)
        table = SlotTable(self.model, context.rows)
        if cache is None:
            cached = table.filled(new, x.dtype)
            h = context.attend(query, *self._expanded(latent, rotary_key, ops), context.tokens)
        else:
            cached = table.stored(cache, new)
            read = lambda take: (vectors := take(cached), vectors[..., : self.shape.kv_rank])
            h = self._absorbed(query, lambda query: table.attend(query, read))
        return ops.run(self, OUT, h), cached

    def _latents(
        self, x: Float[Array, "batch part embed"], tokens: TokenContext, ops: Ops
    ) -> tuple[Float[Array, "batch seq heads width"], Latents, RotaryKeys]:
        """Queries of this rank's heads; the latent vectors, after their norm; and the rotary keys."""
        made = zip(self.part.groups[0].outputs, ops.run(self, DOWN, x), strict=True)
        made = {name: self.named(latent, name) for name, latent in made}
        latent, rotary_key = jnp.split(made["kv_latent"], [self.shape.kv_rank], axis=-1)
        latent, compressed = self._normalized(latent, "kv_norm"), "query_latent" in made
        source = self._normalized(made["query_latent"], "query_norm") if compressed else x
        (query,) = ops.run(self, QUERIES, source)
        query = tokens.tempered(self._rotated(query, tokens))
        query = self.named(query, "expanded_query" if compressed else "query")
        return query, latent, self._rotated(gather_sequence(rotary_key)[:, :, None], tokens)

    def _expanded(
        self, latent: Latents, rotary_key: RotaryKeys, ops: Ops
    ) -> tuple[Float[Array, "batch seq heads width"], Float[Array, "batch seq heads value_dim"]]:
        """Keys and values of this rank's heads."""
        key, value = ops.run(self, UP, latent)
        shared = jnp.broadcast_to(rotary_key, (*key.shape[:-1], rotary_key.shape[-1]))
        key = jnp.concatenate([key, shared], axis=-1)
        return self.named(key, "expanded_key"), self.named(value, "expanded_value")

    def _absorbed(
        self,
        query: Float[Array, "batch seq heads width"],
        attend: Callable[[jax.Array], Float[Array, "batch seq heads kv_rank"]],
    ) -> Float[Array, "batch seq heads value_dim"]:
        """The output from cached vectors that are never expanded (arXiv:2405.04434, section 2.1.2).

        A query times an expanded key is the query times `key_up`, times the latent vector; and a sum of expanded values
        is the sum of latent vectors times `value_up`. `attend` takes queries as wide as the cached vectors, and returns
        sums of their latent part.
        """
        key_up, value_up = self.weight("key_up"), self.weight("value_up")
        unrotated, rotated = jnp.split(query, [key_up.shape[-1]], axis=-1)
        query = jnp.einsum("bshn,rhn->bshr", unrotated, key_up.astype(unrotated.dtype))
        out = attend(jnp.concatenate([query, rotated], axis=-1))
        return jnp.einsum("bshr,rhv->bshv", out, value_up.astype(out.dtype))

    def _rotated(self, x: Float[Array, "batch seq heads width"], tokens: TokenContext) -> jax.Array:
        """`x` with its last `rope_dim` dims rotated."""
        if tokens.cos is None or tokens.sin is None:
            return x
        still, turning = jnp.split(x, [x.shape[-1] - self.shape.rope_dim], axis=-1)
        return jnp.concatenate([still, rotate(turning, tokens.cos, tokens.sin)], axis=-1)

    def _normalized(self, x: Float[Array, "batch part rank"], norm: str) -> Float[Array, "batch part rank"]:
        return rms_normalize(x, self.factors(self.weight(norm)), self.epsilon)


def _weights(model: ModelConfig, latent: LatentAttentionConfig) -> Weights:
    """Matrices down to latent vectors, their norms, and matrices up to each head."""
    embed, heads, scale = model.embed, model.heads, model.init_scale
    neutral = NORMS[model.norm].neutral
    down = lambda width: matrix((embed, width), ("embed", "latent"), scale=scale)
    up = lambda rank, width: matrix((rank, heads, width), ("latent", *QUERY), scale=scale)
    width = counting.head_dim(model)
    if latent.query_rank is None:
        weights = {"query": matrix((embed, heads, width), ("embed", *QUERY), scale=scale)}
    else:
        norm = vector((latent.query_rank,), ("norm",), neutral)
        weights = {"query_down": down(latent.query_rank), "query_norm": norm, "query_up": up(latent.query_rank, width)}
    back = scale / (2 * model.layers) ** 0.5
    return Weights(
        weights,
        kv_down=down(latent.kv_rank + latent.rope_dim),
        kv_norm=vector((latent.kv_rank,), ("norm",), neutral),
        key_up=up(latent.kv_rank, latent.nope_dim),
        value_up=up(latent.kv_rank, latent.value_dim),
        output=matrix((heads, latent.value_dim, embed), (*QUERY, "embed"), inputs=2, scale=back),
    )
