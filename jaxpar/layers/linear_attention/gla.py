"""Gated linear attention (Yang et al. 2023, arXiv:2312.06635): a decay of each key dim that a token decides."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from jaxtyping import Array, Float

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import Context
from jaxpar.layers.declaration.part import Part, vector
from jaxpar.layers.linear_attention.mixer import KEY, VALUE, LinearAttention, declare_part, sizes_of
from jaxpar.layers.linear_attention.recurrence import Streams
from jaxpar.layers.norm import rms_normalize

RANK = 16
"""Width between the two matrices of the decay."""
TEMPERATURE = 16.0


class GatedLinearAttention(LinearAttention):
    """The log decay is logsigmoid(x W1 W2 + b) / 16; a norm of each head, and a SiLU gate."""

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Five projections inward, that of the decay through a few dims."""
        sizes = sizes_of(model)
        vectors = {
            "output_norm": vector((sizes.value_dim,), ("norm",), "ones"),
            "decay_bias": vector((sizes.key_heads, sizes.key_dim), ("heads", "head_dim")),
        }
        inward = {"query": KEY, "key": KEY, "value": VALUE, "gate": VALUE, "decay": KEY}
        return declare_part(model, inward, vectors, ranks={"decay": RANK}, decays=sizes.key_dim)

    def streams(self, made: Mapping[str, jax.Array], context: Context) -> Streams:
        decay = jax.nn.log_sigmoid(self.biased(made["decay"], "decay").astype("float32")) / TEMPERATURE
        query = made["query"] * self.sizes.key_dim**-0.5
        query, key, decay = (self.repeat_for_value_heads(x) for x in (query, made["key"], decay))
        return Streams(query, key, made["value"], decay)

    def gated(self, out: Float[Array, "batch seq heads value"], made: Mapping[str, jax.Array]) -> jax.Array:
        return jax.nn.silu(made["gate"]) * rms_normalize(out, self.weight("output_norm"), self.epsilon)
