"""Kimi delta attention (Kimi Linear, arXiv:2510.26692): the delta rule with a decay of each key dim."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
from jaxtyping import Array, Float

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration.part import Part, vector
from jaxpar.layers.linear_attention.gated_deltanet import GatedDeltaNet
from jaxpar.layers.linear_attention.mixer import (
    CONVOLVED,
    HEAD,
    KEY,
    VALUE,
    declare_part,
    inverse_softplus_of_steps,
    log_of_uniform,
    sizes_of,
)
from jaxpar.layers.norm import rms_normalize

RATES = partial(log_of_uniform, 1.0, 16.0)


class KimiDelta(GatedDeltaNet):
    """Gated DeltaNet with a log decay of each key dim, from a product of two matrices, as that of the gate is;
    the gate is a sigmoid."""

    shares_keys = False

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Six projections inward, two of them through a head's width."""
        sizes = sizes_of(model)
        vectors = {
            "decay_rate": vector((sizes.heads,), ("heads",), RATES),
            "decay_bias": vector((sizes.key_heads, sizes.key_dim), ("heads", "head_dim"), inverse_softplus_of_steps),
            "output_norm": vector((sizes.value_dim,), ("norm",), "ones"),
        }
        inward = {"query": KEY, "key": KEY, "value": VALUE, "gate": VALUE, "rate": HEAD, "decay": KEY}
        ranks = {"decay": sizes.value_dim, "gate": sizes.value_dim}
        return declare_part(model, inward, vectors, convolved=CONVOLVED, ranks=ranks, decays=sizes.key_dim, delta=True)

    def log_decay(self, made: jax.Array) -> Float[Array, "batch seq heads width"]:
        return -self.decay_rates()[:, None] * self.softplus_steps(made)

    def gated(self, out: Float[Array, "batch seq heads value"], made: Mapping[str, jax.Array]) -> jax.Array:
        return rms_normalize(out, self.weight("output_norm"), self.epsilon) * jax.nn.sigmoid(made["gate"])
