"""HGRN2 (Qin et al. 2024, arXiv:2404.07904): a mixer with a state, from outside the package.

    python -m tests.extending.hgrn2 --config configs/quickstart.yaml --set model.mixer=hgrn2

trains as `python -m jaxpar.train` does. A head has a state S, whose key dims a token forgets by f and writes by 1 - f:
S' = diag(f) S + (1 - f) v^T, and its output is S'^T q, normed by head. A document begins with S = 0.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpar.config.parts import MIXERS
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import Context
from jaxpar.layers.declaration.part import Part, vector
from jaxpar.layers.linear_attention.mixer import KEY, VALUE, LinearAttention, declare_part, sizes_of
from jaxpar.layers.linear_attention.recurrence import Streams
from jaxpar.layers.norm import rms_normalize


class HGRN2(LinearAttention):
    """In layer l of L, f is b + (1 - b) sigmoid(x W), with b = l / L: deeper layers forget less."""

    shares_keys = False

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Three projections inward; each key dim has a decay."""
        sizes = sizes_of(model)
        norm = vector((sizes.value_dim,), ("norm",), "ones")
        inward = {"query": KEY, "forget": KEY, "value": VALUE}
        return declare_part(model, inward, {"output_norm": norm}, decays=sizes.key_dim)

    def streams(self, made: Mapping[str, jax.Array], context: Context) -> Streams:
        least = context.index / self.layers
        forget = least + (1 - least) * jax.nn.sigmoid(made["forget"].astype(jnp.float32))
        return Streams(jax.nn.silu(made["query"]), 1 - forget, made["value"], jnp.log(forget))

    def gated(self, out: Float[Array, "batch seq heads value"], made: Mapping[str, jax.Array]) -> jax.Array:
        return rms_normalize(out, self.weight("output_norm"), self.epsilon)


MIXER = "tests.extending.hgrn2:HGRN2"

if __name__ == "__main__":
    from jaxpar.train import main

    MIXERS["hgrn2"] = MIXER
    sys.exit(main())
