"""Retention (Sun et al. 2023, arXiv:2307.08621): a fixed decay of each head, and rotary positions."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.config.counting import rotary_dim
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import key_of
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import Context
from jaxpar.layers.declaration.part import Part
from jaxpar.layers.linear_attention.mixer import KEY, VALUE, LinearAttention, declare_part, sizes_of
from jaxpar.layers.linear_attention.recurrence import Streams
from jaxpar.layers.norm import rms_normalize
from jaxpar.layers.rope import rotate


class Retention(LinearAttention):
    """Head h decays by 1 - 2^(-5 - h) with each token; a norm of each head without a weight, and a SiLU gate."""

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Four projections inward."""
        return declare_part(model, {"query": KEY, "key": KEY, "value": VALUE, "gate": VALUE}, {})

    @classmethod
    def check(cls, model: ModelConfig, kind: str) -> None:
        """Refuse keys that have fewer dims than rotate."""
        super().check(model, kind)
        width, rotated = sizes_of(model).key_dim, rotary_dim(model) if model.position == "rope" else 0
        if width < rotated:
            raise UserError(
                f"{key_of(kind, 'linear_attention.key_dim')}: {width}; expected {rotated} at least, the dims that "
                f"rotary embeddings rotate (model.head_dim, {key_of(kind, 'rope.partial')})"
            )

    def streams(self, made: Mapping[str, jax.Array], context: Context) -> Streams:
        query, key, value, tokens = made["query"], made["key"], made["value"], context.tokens
        if tokens.cos is not None and tokens.sin is not None:
            query, key = (rotate(x, tokens.cos, tokens.sin) for x in (query, key))
        key = key * self.sizes.key_dim**-0.5
        local = value.shape[2]
        heads = lax.axis_index("tensor") * local + jnp.arange(local)
        decay = jnp.log1p(-(2.0 ** (-5.0 - heads)))[:, None]
        return Streams(
            self.repeat_for_value_heads(query),
            self.repeat_for_value_heads(key),
            value,
            jnp.broadcast_to(decay, (*value.shape[:3], 1)),
        )

    def gated(self, out: Float[Array, "batch seq heads value"], made: Mapping[str, jax.Array]) -> jax.Array:
        return jax.nn.silu(made["gate"]) * rms_normalize(out, jnp.ones(out.shape[-1]), self.epsilon)
