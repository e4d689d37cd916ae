"""The model of a layout: the attention that its plan chose, and the parts of a pipeline stage."""

from __future__ import annotations

from functools import cache

import jax

from jaxpar.attention import ContextLayout, RowTokens, attend
from jaxpar.attention.balance import run_length
from jaxpar.config import Config, ModelConfig
from jaxpar.config.counting import attention_scale, window_of
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import Plan
from jaxpar.layers.block import Attend
from jaxpar.layers.context import TokenContext
from jaxpar.layout.step_layout import StepLayout
from jaxpar.layout.weight_prefetch import gathered_before
from jaxpar.memory.remat import LAYER_INPUT, remat_policy
from jaxpar.model.decoder import DecoderStages
from jaxpar.model.loop.layer_stack import Keep, saved_by_kind
from jaxpar.model.programs import program_of
from jaxpar.stores.host_rows import HostRows
from jaxpar.stores.sharded import Sharded
from pallas_kernels.attention import Settings
from pallas_kernels.masks import Mask


def mask_of(config: Config, model: ModelConfig) -> Mask:
    """The attention mask of the layers of `model`, a model of one kind of layers."""
    return Mask(model.causal, window_of(model), segmented=config.data.packed or model.chunk is not None)


def attention_settings(
    config: Config, model: ModelConfig, blocks: tuple[int, int], run: int | None, *, neighbours: bool
) -> Settings:
    """The attention of the layers of `model`, a model of one kind of layers; `blocks` are the queries and keys of
    a block, `run` and `neighbours` as in `Settings`."""
    mask, scale = mask_of(config, model), attention_scale(model)
    return Settings(mask, scale, model.attention_softcap, *blocks, run, neighbours)


def make_attend(config: Config, plan: Plan) -> dict[str, Attend]:
    """The attention of each kind of layers, with the backend and the context strategy of `plan`."""
    (first, *_), models = plan.attention.values(), kind_models(config.model)  # layers that do not attend call none
    backends = {kind: plan.attention.get(kind, first).name for kind in models}
    return {kind: _attend(config, plan, model, backends[kind]) for kind, model in models.items()}


def _attend(config: Config, plan: Plan, model: ModelConfig, backend: str) -> Attend:
    order = plan.context_order.name
    layout = ContextLayout(order, plan.ulysses)
    function = attend(backend, plan.context_strategy.name, layout)
    run = run_length(order, config.data.sequence_length, plan.axes.context // plan.ulysses)
    blocks = plan.query_block, plan.kv_block
    settings = attention_settings(config, model, blocks, run, neighbours=order == "contiguous")

    def attention(
        q: jax.Array, k: jax.Array, v: jax.Array, tokens: TokenContext, sinks: jax.Array | None = None
    ) -> jax.Array:
        row = RowTokens(tokens.indices, tokens.segments, tokens.row_indices, tokens.row_segments)
        return function(settings, q, k, v, row, sinks)

    return attention


def _store_of(plan: Plan) -> type[Sharded]:
    """The store of the layers' weights in a step."""
    return HostRows if plan.weights_offload == "host" else Sharded


def stages_of(layout: StepLayout, *, train: bool) -> DecoderStages:
    """The parts of the model of a plan; without `train` there is no dropout."""
    config, plan = layout.config, layout.plan
    policy = cache(lambda treatments: remat_policy(dict(treatments)))
    keeps = [
        Keep(run.layers, policy(tuple(run.activations.items())), run.activations[LAYER_INPUT] == "offload")
        for run in plan.runs
    ]
    variants = {
        kind: [program_of(config, kind, layers) for layers in stack.layers_of_rows]
        for kind, stack in layout.order.stacks.items()
    }
    return DecoderStages(
        config=config,
        plan=plan,
        placements=layout.placements,
        attend=make_attend(config, plan),
        keeps=saved_by_kind(layout.order.slots, keeps, variants),
        train=train,
        order=layout.order,
        split_backward=layout.schedule.splits_backward,
        store=_store_of(plan),
        gathers_before=gathered_before(plan),
        objective=layout.objective,
    )
