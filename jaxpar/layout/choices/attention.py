"""The attention of a plan: the request, the context strategy, and a backend for each kind of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import Any, NamedTuple, TypedDict

from jaxpar.attention import (
    CONTEXT_STRATEGIES,
    AttentionRequest,
    ContextLayout,
    choose_backend,
    choose_context_strategy,
    context_layout,
)
from jaxpar.attention.backends import backend_of, scratch_bytes
from jaxpar.attention.balance import sequence_order
from jaxpar.attention.context import neighbours
from jaxpar.config import AttentionConfig, Config, UserError
from jaxpar.config.axes import axis_sizes
from jaxpar.config.counting import head_dim, kv_heads, value_dim, window_of
from jaxpar.config.kinds import key_of, kind_models
from jaxpar.config.plan import AxisSizes, Choice, LayerRun, Plan
from jaxpar.distributed.devices import Device
from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layers.declared import attends, mixer_classes
from jaxpar.layout.choices.hardware import hardware_of
from jaxpar.memory.remat import recomputed
from jaxpar.pages.units import size
from pallas_kernels.attention import CHECKPOINT_NAMES

CPU_BLOCK = 64
"""Queries and keys of a block of scores on a CPU: of 32 to 512 the fastest, forward and backward, for 256 tokens of 8
heads of 16 (3.7 times as fast as 512) and 1,024 tokens of 4 heads of 64 (6.8 times)."""


class AttentionPlan(NamedTuple):
    """The fields of a `Plan` that describe attention."""

    attention: dict[str, Choice[str]]
    query_block: int
    kv_block: int
    context_strategy: Choice
    context_order: Choice[Any]
    ulysses: int


def attention_plan(
    config: Config, device: Device, runs: Sequence[LayerRun], node_devices: int | None = None
) -> AttentionPlan:
    """The attention of layers that keep `runs`; see `make_plan`. Raises `UserError` for a choice that is impossible."""
    requests = attention_requests(config, device, runs, node_devices)
    served = widest(requests)
    strategy = choose_context_strategy(config.parallel.context_strategy, served, config.attention.backend)
    layout = _context_layout(config, strategy.name, served)
    full_rows = layout.ulysses == served.context
    backends = {
        kind: choose_backend(config.attention.backend, replace(request, full_rows=full_rows), kind=kind)
        for kind, request in requests.items()
    }
    return AttentionPlan(
        attention=backends,
        **score_blocks(config.attention, device),
        context_strategy=strategy,
        context_order=Choice(layout.order, _order_words(config, strategy.name, served, layout)),
        ulysses=layout.ulysses,
    )


class ScoreBlocks(TypedDict):
    """Sizes of the blocks in which XLA computes attention."""

    query_block: int
    kv_block: int


def score_blocks(config: AttentionConfig, device: Device) -> ScoreBlocks:
    """The sizes in the configuration, or those that are fast on devices like `device`: on a CPU, blocks that stay in
    its cache and of which a causal mask leaves out half; on GPUs, few launches."""
    usual = CPU_BLOCK if device.platform == "cpu" else Plan.query_block
    return ScoreBlocks(query_block=config.query_block or usual, kv_block=config.kv_block or usual)


def strategy_on(config: Config, cluster: Cluster) -> str:
    """The context strategy on the GPUs of a cluster."""
    request = widest(attention_requests(config, DescribedGPU.from_gpu(cluster.gpu), (), cluster.gpus_per_host))
    return choose_context_strategy(config.parallel.context_strategy, request, config.attention.backend).name


def backends_on(config: Config, gpu: GPU, strategy: str) -> dict[str, str]:
    """The attention backend of each kind of layers under a context strategy on GPUs of a cluster; without the kinds
    that the configured one does not support, which a run refuses."""
    full_rows = config.parallel.context == 1 or strategy == "ulysses"
    requests = attention_requests(config, DescribedGPU.from_gpu(gpu), ()).items()
    backends = {kind: backend_of(config.attention.backend, replace(one, full_rows=full_rows)) for kind, one in requests}
    return {kind: name for kind, name in backends.items() if name is not None}


def scratch_on(config: Config, gpu: GPU, strategy: str) -> int:
    """Scratch memory of a layer's attention under a context strategy on GPUs of a cluster."""
    if not config.data.packed:
        return 0
    full_rows = config.parallel.context == 1 or strategy == "ulysses"
    requests = attention_requests(config, DescribedGPU.from_gpu(gpu), ()).values()
    return max(scratch_bytes(config.attention.backend, replace(one, full_rows=full_rows)) for one in requests)


def check_attention(plan: Plan, config: Config, device: Device, node_devices: int | None = None) -> None:
    """Raise `UserError` if the attention of a plan cannot run on devices like `device`."""
    requests = attention_requests(config, device, plan.runs, node_devices)
    if plan.attention.keys() != requests.keys():
        planned, attending = (", ".join(kinds) or "none" for kinds in (plan.attention, requests))
        raise UserError(
            f"plan.attention: is of the kinds {planned}; expected those of the layers that attend, {attending}"
        )
    for kind, request in requests.items():
        planned_request = replace(request, full_rows=plan.ulysses == plan.axes.context, ulysses=plan.ulysses)
        choose_backend(plan.attention[kind].name, planned_request, f"plan.attention.{kind}", kind)
    served = replace(widest(requests), ulysses=plan.ulysses)
    choose_context_strategy(plan.context_strategy.name, served, key="plan.context_strategy")


def unused_blocks(plan: Plan, config: AttentionConfig) -> list[str]:
    """Keys among `attention.query_block` and `kv_block` that were set though no layer's attention has blocks."""
    if any(choice.name == "xla" for choice in plan.attention.values()):
        return []
    set_here = [key for key in ("query_block", "kv_block") if getattr(config, key) is not None]
    return [f"attention.{key}: {getattr(config, key)}" for key in set_here]


def _order_words(config: Config, strategy: str, request: AttentionRequest, layout: ContextLayout) -> str:
    if request.context == 1:
        return ""
    if (mixer := _contiguous_mixer(config)) is not None:
        return f"{mixer[1]} passes a state from each context rank to the next"
    (entry,) = (entry for entry in CONTEXT_STRATEGIES if entry.name == strategy)
    sent = entry.traffic(request, layout)
    return (
        f"a device sends {size(round(sent.forward))} forward and {size(round(sent.backward))} backward per "
        "layer and microbatch"
    )


def _context_layout(config: Config, strategy: str, request: AttentionRequest) -> ContextLayout:
    """Strategy by which context ranks share a row; raises `UserError` where its length does not allow it."""
    order, length = config.parallel.context_order, config.data.sequence_length
    if (mixer := _contiguous_mixer(config)) is not None and request.context > 1:
        if order not in ("auto", "contiguous"):
            raise UserError(
                f"parallel.context_order: {order}, and {key_of(mixer[0], 'mixer')}: {mixer[1]} passes a state from "
                "each context rank to the next; expected auto or contiguous"
            )
        order = "contiguous"
    layout = context_layout(strategy, order, request)
    ranks = request.context // layout.ulysses
    if config.parallel.ulysses is not None and strategy != "usp":
        raise UserError(
            f"parallel.ulysses: {config.parallel.ulysses} would not be used, because the context strategy is "
            f"{strategy}; expected parallel.context_strategy: usp with it, or null"
        )
    if strategy == "ulysses" and request.context > 1 and layout.order != "contiguous":
        raise UserError(
            f"parallel.context_order: expected auto or contiguous, got {order}; under ulysses each rank attends over "
            "whole rows, so there is nothing to balance"
        )
    try:
        sequence_order(layout.order, length, ranks)
    except ValueError as error:
        raise UserError(f"data.sequence_length: {error}; or take another parallel.context_order") from None
    return layout


def _contiguous_mixer(config: Config) -> tuple[str, str] | None:
    """A kind of layers that takes tokens in contiguous order alone, and its mixer, if there is one."""
    models = kind_models(config.model).items()
    contiguous = lambda model: any(mixer.order == "contiguous" for mixer in mixer_classes(model))
    return next(((kind, model.mixer) for kind, model in models if contiguous(model)), None)


def attention_requests(
    config: Config, device: Device, runs: Sequence[LayerRun], node_devices: int | None = None
) -> dict[str, AttentionRequest]:
    """The attention request of each kind of layers that attends, or of all where none does; see `attention_request`."""
    models = kind_models(config.model)
    models = {kind: model for kind, model in models.items() if attends(model)} or models
    return {kind: attention_request(replace(config, model=m), device, runs, node_devices) for kind, m in models.items()}


def widest(requests: Mapping[str, AttentionRequest]) -> AttentionRequest:
    """The request of the kind with the widest window: the order of a row's tokens is chosen for it."""
    return max(requests.values(), key=lambda request: request.sequence if request.window is None else request.window)


def attention_request(
    config: Config, device: Device, runs: Sequence[LayerRun], node_devices: int | None = None
) -> AttentionRequest:
    """The attention request of layers that keep `runs`, on one device of the layout; see `attention_plan`."""
    model, parallel = config.model, config.parallel
    tensor, context = parallel.tensor, parallel.context
    at_hand = context if node_devices is None else gcd(context, max(1, node_devices // tensor))
    return AttentionRequest(
        **hardware_of(device),
        dtype=config.precision.compute,
        heads=model.heads // tensor,
        kv_heads=max(1, kv_heads(model) // tensor),
        head_dim=head_dim(model),
        value_dim=value_dim(model),
        packed=config.data.packed or model.chunk is not None,
        window=window_of(model),
        causal=model.causal,
        softcap=model.attention_softcap,
        prefix=False,
        sinks=model.attention_sinks,
        sequence=config.data.sequence_length,
        context=context,
        rows=config.data.batch_size // (AxisSizes(**axis_sizes(parallel)).data * parallel.microbatches),
        attends_again=any(recomputed(runs, name) for name in CHECKPOINT_NAMES),
        ulysses=parallel.ulysses or neighbours(context, model.heads // tensor, at_hand),
        permutes=parallel.pipe == 1 or parallel.pipe_ticks == "uniform",
        deterministic=config.attention.deterministic,
    )
