"""Lightning attention (MiniMax-01, arXiv:2501.08313): a fixed decay of each head, by its layer's depth."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import Context
from jaxpar.layers.declaration.part import Part, vector
from jaxpar.layers.linear_attention.mixer import KEY, VALUE, LinearAttention, declare_part, sizes_of
from jaxpar.layers.linear_attention.recurrence import Streams
from jaxpar.mesh.collectives import sum_over_heads


class Lightning(LinearAttention):
    """SiLU of queries, keys and values; the log decay of head h of H in layer l of L is
    -2^(-8 (h + 1) / H) (1 - l / (L - 1)); a norm over all heads, and a sigmoid gate."""

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Declares the four projections inward and the one outward."""
        sizes = sizes_of(model)
        norm = vector((sizes.heads, sizes.value_dim), ("heads", "head_dim"), "ones")
        return declare_part(model, {"query": KEY, "key": KEY, "value": VALUE, "gate": VALUE}, {"output_norm": norm})

    def streams(self, made: Mapping[str, jax.Array], context: Context) -> Streams:
        q, k, v = (jax.nn.silu(made[name]) for name in ("query", "key", "value"))
        local = v.shape[2]
        heads = lax.axis_index("tensor") * local + jnp.arange(local) + 1
        slope = 2.0 ** (-8 * heads / self.sizes.heads)
        decay = -slope * (1 - context.index / (self.layers - 1 + 1e-5) + 1e-5)
        return Streams(
            self.repeat_for_value_heads(q),
            self.repeat_for_value_heads(k),
            v,
            jnp.broadcast_to(decay[:, None], (*v.shape[:3], 1)),
        )

    def gated(self, out: Float[Array, "batch seq heads value"], made: Mapping[str, jax.Array]) -> jax.Array:
        y = out.astype(jnp.float32)
        mean = sum_over_heads(jnp.sum(y * y, axis=(-2, -1), keepdims=True)) / (self.sizes.heads * self.sizes.value_dim)
        return jax.nn.sigmoid(made["gate"]) * y * lax.rsqrt(mean + self.epsilon) * self.weight("output_norm")
