"""The linear layers of SpikingBrain (arXiv:2509.05276): gated linear attention with few heads of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpar.config.errors import UserError
from jaxpar.config.kinds import key_of
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import Context
from jaxpar.layers.declaration.part import Part, Weights, factor_names, vector
from jaxpar.layers.linear_attention.gla import RANK, TEMPERATURE
from jaxpar.layers.linear_attention.mixer import (
    KEY,
    QUERY,
    SHARED_VALUE,
    LinearAttention,
    declare_part,
    sizes_of,
)
from jaxpar.layers.linear_attention.recurrence import Streams
from jaxpar.layers.norm import rms_normalize

GAIN = 2.0**-2.5
"""Gain of the initial matrices of the decay, as published."""


def xavier(key: Array, shape: tuple[int, ...], inputs: int, outputs: int) -> Float[Array, "*shape"]:
    """Initial values that are uniform up to `GAIN` sqrt(6 / (inputs + outputs))."""
    bound = GAIN * (6 / (inputs + outputs)) ** 0.5
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)


class ReluGatedLinearAttention(LinearAttention):
    """A ReLU of queries and keys; the log decay is logsigmoid(x W1 W2 + b) / 16. Several heads of queries share the
    keys, values and decays of one; a norm of each head without a gate. The shapes are those of grouped-query attention,
    whose weights it can begin with."""

    reads = (*LinearAttention.reads, "attention_bias")

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Four projections inward, that of the decay through a few dims."""
        sizes = sizes_of(model)
        keys, values = (sizes.key_heads, sizes.key_dim), (sizes.key_heads, sizes.value_dim)
        by_head = ("heads", "head_dim")
        vectors = {
            "output_norm": vector((sizes.value_dim,), ("norm",), "ones"),
            "decay_bias": vector(keys, by_head),
        }
        if model.attention_bias:
            vectors |= {
                "query_bias": vector((sizes.heads, sizes.key_dim), by_head), "key_bias": vector(keys, by_head),
                "value_bias": vector(values, by_head),
            }  # fmt: skip
        inward = {"query": QUERY, "key": KEY, "value": SHARED_VALUE, "decay": KEY}
        part = declare_part(model, inward, vectors, ranks={"decay": RANK}, decays=sizes.key_dim)
        first, second = factor_names("decay")
        drawn = {
            first: replace(part.weights[first], init=partial(xavier, inputs=model.embed, outputs=RANK)),
            second: replace(part.weights[second], init=partial(xavier, inputs=RANK, outputs=keys[0] * keys[1])),
        }
        return replace(part, weights=Weights(part.weights | drawn))

    @classmethod
    def check(cls, model: ModelConfig, kind: str) -> None:
        """Refuse a bias of the output."""
        super().check(model, kind)
        if model.attention_bias is True:
            raise UserError(
                f"{key_of(kind, 'attention_bias')}: true, and the output of {model.mixer} has no bias; expected qkv or "
                "false"
            )

    def streams(self, made: Mapping[str, jax.Array], context: Context) -> Streams:
        query, key, value = (self.biased(made[name], name) for name in ("query", "key", "value"))
        decay = jax.nn.log_sigmoid(self.biased(made["decay"], "decay").astype(jnp.float32)) / TEMPERATURE
        key, value, decay = (self.repeat_for_value_heads(x) for x in (jax.nn.relu(key), value, decay))
        return Streams(jax.nn.relu(query) * self.sizes.key_dim**-0.5, key, value, decay)

    def gated(self, out: Float[Array, "batch seq heads value"], made: Mapping[str, jax.Array]) -> jax.Array:
        return rms_normalize(out, self.weight("output_norm"), self.epsilon)
