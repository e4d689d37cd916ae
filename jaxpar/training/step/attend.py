"""The attention of a plan, as the function called by the model."""

from __future__ import annotations

import jax

from jaxpar.attention import ContextLayout, RowTokens, attend
from jaxpar.attention.balance import run_length
from jaxpar.config import Config, ModelConfig
from jaxpar.config.counting import attention_scale
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import Plan
from jaxpar.layers.attention import Attend
from jaxpar.layers.context import TokenContext
from pallas_kernels.attention import Settings
from pallas_kernels.masks import Mask


def mask_of(config: Config, model: ModelConfig) -> Mask:
    """The attention mask of the layers of `model`, a model of one kind of layers."""
    return Mask(causal=True, window=model.window, segmented=config.data.packed)


def make_attend(config: Config, plan: Plan) -> dict[str, Attend]:
    """The attention of each kind of layers, with the backend and the context strategy of `plan`."""
    models = kind_models(config.model).items()
    return {kind: _attend(config, plan, model, plan.attention_of(kind).name) for kind, model in models}


def _attend(config: Config, plan: Plan, model: ModelConfig, backend: str) -> Attend:
    layout = ContextLayout(plan.context_order, plan.ulysses)
    function, options = attend(backend, plan.context_strategy.name, layout), config.attention
    settings = Settings(
        mask_of(config, model),
        attention_scale(model),
        model.attention_softcap,
        options.query_block,
        options.kv_block,
        run_length(plan.context_order, config.data.sequence_length, plan.axes.context // plan.ulysses),
        neighbours=plan.context_order == "contiguous",
    )

    def attention(q: jax.Array, k: jax.Array, v: jax.Array, tokens: TokenContext) -> jax.Array:
        row = RowTokens(tokens.indices, tokens.segments, tokens.row_indices, tokens.row_segments)
        return function(settings, q, k, v, row)

    return attention
