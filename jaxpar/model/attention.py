"""Self-attention: projections with heads split over the tensor axis, around whichever attention the plan chose."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from jaxpar.config import counting
from jaxpar.config.schema import ModelConfig
from jaxpar.model.activations import name_activation
from jaxpar.model.context import TokenContext
from jaxpar.model.norm import from_zero, rms_normalize, rms_normalize_heads
from jaxpar.model.rope import rotate
from jaxpar.model.weights import weight

type Attend = Callable[[jax.Array, jax.Array, jax.Array, TokenContext], jax.Array]
"""Attention of this rank's queries over the whole sequence: (query, key, value, tokens) -> output like query."""


class Attention(nnx.Module):
    """Multi-head attention with grouped queries (arXiv:2305.13245)."""

    def __init__(self, model: ModelConfig):
        heads, kv_heads, head_dim = model.heads, counting.kv_heads(model), counting.head_dim(model)
        self.kv_heads, self.epsilon = kv_heads, model.norm_epsilon
        self.biased, self.normed = bool(model.attention_bias), model.qk_norm
        self.output_biased = model.attention_bias is True
        self.zero_centered = model.norm == "zero_centered_rmsnorm"
        options = {"matrix": True, "decay": True}
        back = model.init_scale / (2 * model.layers) ** 0.5
        of_query, of_kv = ("embed", "heads", "head_dim"), ("embed", "kv_heads", "head_dim")
        self.query = weight((model.embed, heads, head_dim), of_query, scale=model.init_scale, **options)
        self.key = weight((model.embed, kv_heads, head_dim), of_kv, scale=model.init_scale, **options)
        self.value = weight((model.embed, kv_heads, head_dim), of_kv, scale=model.init_scale, **options)
        self.output = weight(
            (heads, head_dim, model.embed), ("heads", "head_dim", "embed"), inputs=2, scale=back, **options
        )
        if self.biased:
            self.query_bias = weight((heads, head_dim), ("heads", "head_dim"), init="zeros")
            self.key_bias = weight((kv_heads, head_dim), ("kv_heads", "head_dim"), init="zeros")
            self.value_bias = weight((kv_heads, head_dim), ("kv_heads", "head_dim"), init="zeros")
        if self.output_biased:
            self.output_bias = weight((model.embed,), ("norm",), init="zeros")
        neutral = "zeros" if self.zero_centered else "ones"
        if self.normed == "projection":
            self.query_norm = weight((heads, head_dim), ("heads", "head_dim"), init=neutral)
            self.key_norm = weight((kv_heads, head_dim), ("kv_heads", "head_dim"), init=neutral)
        elif self.normed:
            self.query_norm = weight((head_dim,), ("norm",), init=neutral)
            self.key_norm = weight((head_dim,), ("norm",), init=neutral)

    def project_in(self, x: Float[Array, "batch seq embed"]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Matmuls of the joined sequence with this rank's heads: query, key and value, without biases."""
        q = jnp.einsum("bse,ehd->bshd", x, self.query[...])
        k = jnp.einsum("bse,ehd->bshd", x, self._own_heads(self.key[...], 1))
        v = jnp.einsum("bse,ehd->bshd", x, self._own_heads(self.value[...], 1))
        return q, k, v

    def project_out(self, x: Float[Array, "batch seq heads head_dim"]) -> Float[Array, "batch seq embed"]:
        """This rank's partial sums; the output bias is added by `add_bias`."""
        return jnp.einsum("bshd,hde->bse", x, self.output[...])

    def mix(
        self, q: jax.Array, k: jax.Array, v: jax.Array, tokens: TokenContext, attend: Attend
    ) -> Float[Array, "batch seq heads head_dim"]:
        """From what `project_in` made to what `project_out` takes: biases, norms, rotation and attention."""
        if self.biased:
            q = q + self.query_bias[...]
            k = k + self._own_heads(self.key_bias[...], 0)
            v = v + self._own_heads(self.value_bias[...], 0)
        if self.normed:
            # The norm's derivative needs its input: with that kept, no matmul runs again, and elementwise work does.
            q, k = name_activation(q, "query"), name_activation(k, "key")
            q, k = self._normalize(q, k)
        if tokens.cos is not None and tokens.sin is not None:
            q, k = rotate(q, tokens.cos, tokens.sin), rotate(k, tokens.cos, tokens.sin)
        if not self.normed:
            q, k = name_activation(q, "query"), name_activation(k, "key")
        v = name_activation(v, "value")
        return attend(q, k, v, tokens)

    def _normalize(self, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Queries and keys under their norms, of each head or of the whole projection."""
        of_query, of_key = self.query_norm[...], self.key_norm[...]
        if self.zero_centered:
            of_query, of_key = from_zero(of_query), from_zero(of_key)
        if self.normed == "projection":
            q, k = rms_normalize_heads((q, k), (of_query, self._own_heads(of_key, 0)), self.epsilon)
            return q, k
        return rms_normalize(q, of_query, self.epsilon), rms_normalize(k, of_key, self.epsilon)

    def add_bias(self, x: Float[Array, "batch part embed"]) -> Float[Array, "batch part embed"]:
        """Add the output bias, after the partial sums of the tensor ranks are summed: once, not once per rank."""
        return x + self.output_bias[...] if self.output_biased else x

    def _own_heads(self, w: jax.Array, axis: int) -> jax.Array:
        """Key or value heads that this rank's query heads use.

        With at least as many heads as tensor ranks, the weight is split and this is all of it. With fewer, every rank
        holds all of them and takes the one that its query heads share.
        """
        ranks = lax.axis_size("tensor")
        if self.kv_heads % ranks == 0:
            return w
        return lax.dynamic_slice_in_dim(w, lax.axis_index("tensor") * self.kv_heads // ranks, 1, axis)
