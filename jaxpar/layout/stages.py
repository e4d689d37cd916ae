"""The model of a layout: the attention that its plan chose, and the parts of a pipeline stage."""

from __future__ import annotations

from functools import cache, reduce
from math import prod
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxpar.attention import ContextLayout, RowTokens, attend
from jaxpar.attention.balance import run_length
from jaxpar.config import Config, ModelConfig
from jaxpar.config.counting import attention_scale
from jaxpar.config.kinds import ALIKE, kind_models
from jaxpar.config.plan import Plan
from jaxpar.layers.block import Attend
from jaxpar.layers.context import TokenContext
from jaxpar.layers.matmul_formats import (
    dense_groups,
    first_columns,
    is_exact,
    quantised,
    quantised_groups,
    routed_groups,
)
from jaxpar.layout.choices.matmul import codes_once
from jaxpar.layout.step_layout import StepLayout
from jaxpar.layout.weight_prefetch import gathered_before
from jaxpar.memory.remat import LAYER_INPUT, remat_policy
from jaxpar.mesh.layer_order import LAYERS, PADDING, StackOrder
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.mesh.placements import added_dim, local_shape
from jaxpar.model.decoder import DecoderStages
from jaxpar.model.loop.layer_kind import Keep, keeps_by_kind
from jaxpar.precision.recipe import recipe_of
from jaxpar.precision.squares import Squares, squares_of
from jaxpar.precision.weight_codes import CodedMatrix
from jaxpar.stores.host_rows import HostRows
from jaxpar.stores.quantized import Quantized
from jaxpar.stores.sharded import Sharded
from pallas_kernels.attention import Settings
from pallas_kernels.masks import Mask


def mask_of(config: Config, model: ModelConfig) -> Mask:
    """The attention mask of the layers of `model`, a model of one kind of layers."""
    return Mask(causal=True, window=model.window, segmented=config.data.packed)


def attention_settings(
    config: Config, model: ModelConfig, blocks: tuple[int, int], run: int | None, *, neighbours: bool
) -> Settings:
    """The attention of the layers of `model`, a model of one kind of layers; `blocks` are the queries and keys of
    a block, `run` and `neighbours` as in `Settings`."""
    mask, scale = mask_of(config, model), attention_scale(model)
    return Settings(mask, scale, model.attention_softcap, *blocks, run, neighbours)


def make_attend(config: Config, plan: Plan) -> dict[str, Attend]:
    """The attention of each kind of layers, with the backend and the context strategy of `plan`."""
    models = kind_models(config.model).items()
    return {kind: _attend(config, plan, model, plan.attention_of(kind).name) for kind, model in models}


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


def exact_rows(config: Config, stack: StackOrder) -> list[bool | None]:
    """Of each row of a chunk, whether the matmuls of its layers are not quantised; None if only in some chunks."""
    rows = [
        {is_exact(config, layer) for layer in stack.numbers[:, :, row].ravel().tolist() if layer != PADDING}
        for row in range(stack.rows_per_chunk)
    ]
    return [None if len(found) > 1 else found != {False} for found in rows]


@cache
def coded_matrices(layout: StepLayout) -> tuple[CodedMatrix, ...]:
    """The stacked matrices that are quantised once per step, where `codes_once`."""
    config, found = layout.config, []
    for kind, model in kind_models(config.model).items():
        groups, stack = quantised(config, model), layout.order.stacks[kind]
        rows = tuple(exact_rows(config, stack))
        if not groups or all(rows):
            continue
        above = (LAYERS,) if kind == ALIKE else (LAYERS, kind)
        first = first_columns(config, groups)
        for part, group in (*dense_groups(model), *routed_groups(model)):
            for place, name in enumerate(groups.get(group.name, ()), start=first.get(group.name, 0) + 1):
                path = (*above, part.name, name)
                squares = _squares(layout, path, part.weights[name].stacked(stack.rows))
                found.append(CodedMatrix(path, place, rows, stack, kind, group.name, squares))
    return tuple(found)


def _squares(layout: StepLayout, path: tuple[str, ...], spec: ParamSpec) -> Squares | None:
    """The squares of a stacked matrix as its master weights are placed; None if a matrix has one scale."""
    recipe, sizes = recipe_of(layout.config.precision), layout.plan.axes
    if recipe is None or recipe.tiles is None:
        return None
    roles = layout.placements.compute, layout.placements.optimizer
    compute, own = (_at(role.layout, path) for role in roles)
    added = added_dim(compute, own)
    ranks = prod(getattr(sizes, axis) for axis in added[1]) if added else 1
    return squares_of(recipe.tiles.size, local_shape(spec.shape, own, sizes), spec.stack, spec.inputs, added, ranks)


def _at(tree: Any, path: tuple[str, ...]) -> PartitionSpec:
    return reduce(lambda tree, name: tree[name], path, tree)


def stages_of(layout: StepLayout, *, train: bool) -> DecoderStages:
    """The parts of the model of a plan; without `train` there is no dropout."""
    config, plan = layout.config, layout.plan
    policy = cache(lambda kept: remat_policy(dict(kept)))
    keeps = [
        Keep(run.layers, policy(tuple(run.activations.items())), run.activations[LAYER_INPUT] == "offload")
        for run in plan.runs
    ]
    models = kind_models(config.model)
    variants = {
        kind: [quantised_groups(config, models[kind], exact) for exact in exact_rows(config, stack)]
        for kind, stack in layout.order.stacks.items()
    }
    return DecoderStages(
        config=config,
        plan=plan,
        placements=layout.placements,
        attend=make_attend(config, plan),
        keeps=keeps_by_kind(layout.order.slots, keeps, variants),
        train=train,
        order=layout.order,
        split_backward=layout.schedule.splits_backward,
        store=HostRows if plan.weights_offload == "host" else Quantized if codes_once(plan) else Sharded,
        gathers_before=gathered_before(plan),
        objective=layout.objective,
    )
