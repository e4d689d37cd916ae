"""Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): a state space model whose heads have one decay each."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import Context
from jaxpar.layers.declaration.part import Part, vector
from jaxpar.layers.linear_attention.mixer import (
    CONVOLVED,
    HEAD,
    KEY,
    VALUE,
    LinearAttention,
    cached_arrays,
    declare_part,
    inverse_softplus_of_steps,
    sizes_of,
)
from jaxpar.layers.linear_attention.recurrence import Streams


def log_of_numbers(key: Array, shape: tuple[int, ...]) -> Float[Array, " heads"]:
    """Initial logarithms of 1, 2, ... for the heads."""
    del key
    return jnp.log(jnp.arange(1, shape[0] + 1, dtype=jnp.float32))


class Mamba2(LinearAttention):
    """With steps D = softplus(d + b), the log decay is -D exp(A), and D x enters the state: queries are C, keys are B,
    values are x. A share of x is added to the output; the norm of each group of heads comes after the SiLU gate. Steps
    may have a least value."""

    convolved, steps = CONVOLVED, True
    cache = cached_arrays(*CONVOLVED)

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Five projections inward, one of which makes one number of each head."""
        sizes = sizes_of(model)
        heads = lambda init: vector((sizes.heads,), ("heads",), init)
        by_key, by_value = (sizes.key_heads, sizes.key_dim), (sizes.heads, sizes.value_dim)
        vectors = {
            "decay_rate": heads(log_of_numbers), "step_bias": heads(inverse_softplus_of_steps), "skip": heads("ones"),
            "query_taps_bias": vector(by_key, ("heads", "head_dim")),
            "key_taps_bias": vector(by_key, ("heads", "head_dim")),
            "value_taps_bias": vector(by_value, ("heads", "head_dim")),
            "output_norm": vector(by_value, ("heads", "head_dim"), "ones"),
        }  # fmt: skip
        inward = {"query": KEY, "key": KEY, "value": VALUE, "gate": VALUE, "step": HEAD}
        return declare_part(model, inward, vectors, convolved=CONVOLVED)

    def streams(self, made: Mapping[str, jax.Array], context: Context) -> Streams:
        steps = jax.nn.softplus(self.biased(made["step"], "step").astype(jnp.float32))
        steps = jnp.maximum(steps, self.sizes.least_step)
        decay = -jnp.exp(self.weight("decay_rate").astype(jnp.float32)) * steps
        query, key = (self.repeat_for_value_heads(made[name]) for name in ("query", "key"))
        return Streams(query, key, steps[..., None] * made["value"], decay[..., None])

    def gated(self, out: Float[Array, "batch seq heads value"], made: Mapping[str, jax.Array]) -> jax.Array:
        y = out.astype(jnp.float32) + self.weight("skip").astype(jnp.float32)[:, None] * made["value"]
        y = y * jax.nn.silu(made["gate"].astype(jnp.float32))
        groups = y.reshape(*y.shape[:2], -1, self.sizes.heads // self.sizes.key_heads * y.shape[3])
        groups = groups * lax.rsqrt(jnp.mean(groups * groups, axis=-1, keepdims=True) + self.epsilon)
        return groups.reshape(y.shape) * self.weight("output_norm")
