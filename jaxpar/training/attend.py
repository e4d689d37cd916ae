"""The attention of a plan, as the function that the model calls."""

from __future__ import annotations

import jax

from jaxpar.attention import attend
from jaxpar.config import Config
from jaxpar.config.plan import Plan
from jaxpar.model.attention import Attend
from jaxpar.model.context import TokenContext
from pallas_kernels.masks import Mask


def mask_of(config: Config) -> Mask:
    """What a token of the run may see."""
    return Mask(causal=True, window=config.model.window, segmented=config.data.packed)


def make_attend(config: Config, plan: Plan) -> Attend:
    """Attention with the backend and the context strategy of `plan`."""
    function, mask = attend(plan.attention.name, plan.context_strategy.name), mask_of(config)
    options = {
        "softcap": config.model.attention_softcap,
        "query_block": config.attention.query_block,
        "kv_block": config.attention.kv_block,
    }

    def attention(q: jax.Array, k: jax.Array, v: jax.Array, tokens: TokenContext) -> jax.Array:
        return function(q, k, v, mask=mask, slots=tokens.slots, segments=tokens.segments, **options)

    return attention
