"""Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464): the delta rule with a decay of each head (Qwen3-Next)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
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
    log_of_uniform,
    normalized_length,
    sizes_of,
)
from jaxpar.layers.linear_attention.recurrence import Streams
from jaxpar.layers.norm import rms_normalize

RATES = partial(log_of_uniform, 0.01, 16.0)
"""Initial values of A, whose exponential is uniform between these."""


class GatedDeltaNet(LinearAttention):
    """Queries and keys of length 1; the rule's rate is a sigmoid, the log decay -exp(A) softplus(a + b); a norm of each
    head, and a SiLU gate."""

    convolved = CONVOLVED
    cache = cached_arrays(*CONVOLVED)

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Six input projections; `rate` and `decay` have one output for each head."""
        sizes = sizes_of(model)
        vectors = {
            "decay_rate": vector((sizes.heads,), ("heads",), RATES),
            "decay_bias": vector((sizes.heads,), ("heads",), "ones"),
            "output_norm": vector((sizes.value_dim,), ("norm",), "ones"),
        }
        inward = {"query": KEY, "key": KEY, "value": VALUE, "gate": VALUE, "rate": HEAD, "decay": HEAD}
        return declare_part(model, inward, vectors, convolved=CONVOLVED, delta=True)

    def streams(self, made: Mapping[str, jax.Array], context: Context) -> Streams:
        query, key = (self.repeat_for_value_heads(normalized_length(made[name])) for name in ("query", "key"))
        rate = jax.nn.sigmoid(made["rate"].astype(jnp.float32))
        return Streams(query * self.sizes.key_dim**-0.5, key, made["value"], self.log_decay(made["decay"]), rate)

    def log_decay(self, made: jax.Array) -> Float[Array, "batch seq heads width"]:
        """The log decay from its projection: one for each head; a subclass may have one for each key dim."""
        return (-self.decay_rates() * self.softplus_steps(made))[..., None]

    def decay_rates(self) -> Float[Array, " heads"]:
        """exp(A) of each head."""
        return jnp.exp(self.weight("decay_rate").astype(jnp.float32))

    def softplus_steps(self, made: jax.Array) -> Float[Array, "batch seq heads *width"]:
        """Returns the step sizes softplus(a + b)."""
        return jax.nn.softplus(self.biased(made, "decay").astype(jnp.float32))

    def gated(self, out: Float[Array, "batch seq heads value"], made: Mapping[str, jax.Array]) -> jax.Array:
        return rms_normalize(out, self.weight("output_norm"), self.epsilon) * jax.nn.silu(made["gate"])
