"""From what the user asked for to a `Plan` for the devices at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from math import gcd

from jaxpar.attention import (
    AttentionRequest,
    ContextLayout,
    choose_backend,
    choose_context_strategy,
    context_layout,
)
from jaxpar.attention.balance import sequence_order
from jaxpar.attention.context import neighbours
from jaxpar.config import Config, UserError
from jaxpar.config.axes import AXES, resolve_axes
from jaxpar.config.counting import head_dim, kv_heads
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import AxisSizes, Dtypes, LayerRun, Plan
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.hardware.memory import pool_bytes
from jaxpar.layers.checks import validate
from jaxpar.layers.declared import activation_names, hidden_names
from jaxpar.memory.costs import LayerCosts, layer_costs, speeds_on
from jaxpar.memory.fraction import kept_bytes, offload_share
from jaxpar.memory.layer_shape import layer_shape
from jaxpar.memory.pipeline_offload import check_hidden
from jaxpar.memory.remat import AUTO, layer_runs, offloaded, recomputed, remat_name
from jaxpar.mesh.devices import Device, cluster_of
from jaxpar.training.auto_remat import auto_runs
from jaxpar.training.head_loss import choose_loss
from jaxpar.training.memory_check import host_share, mebibytes, own_host_share, usable_bytes
from jaxpar.training.pipeline import choose_schedule, chunk_layers, order_of_chunks
from jaxpar.training.tiles import loss_tiles, mlp_tiles, without_hidden
from pallas_kernels.attention import SAVED_NAMES


def resolve_config(config: Config, devices: int) -> Config:
    """`config` with the mesh axis of -1 filled in for `devices`, checked. Raises `UserError`."""
    if config.parallel.auto:
        raise UserError(
            "parallel: auto is planned when python -m jaxpar.train starts; plan first, with python -m jaxpar.plan, and "
            "use what it writes"
        )
    config = replace(config, parallel=resolve_axes(config.parallel, devices))
    validate(config)
    return config


def with_vocab(config: Config, vocab: int) -> Config:
    """`config` with the vocabulary that the data has, checked. Raises `UserError`."""
    config = replace(config, model=replace(config.model, vocab=vocab))
    validate(config)
    return config


def make_plan(
    config: Config,
    device: Device,
    node_devices: int | None = None,
    cluster: Cluster | None = None,
    usable: int | None = None,
) -> Plan:
    """The layout of a resolved `config` on devices like `device`, in nodes of `node_devices` (None: all in one).

    `cluster` has the speeds of GPUs and links and the memory; by default those that are known of `device`.
    `usable` is what a program may take of a device, in bytes; by default the processes of the job agree on it.
    Raises `UserError` for a choice that does not support it.
    """
    axes = _axes(config)
    own = usable_bytes if cluster is None else partial(pool_bytes, cluster.device_bytes)
    described = cluster is not None
    cluster = cluster or cluster_of(device, axes.devices, node_devices)
    rows = config.data.batch_size // (axes.data * config.parallel.microbatches)
    costs = _layer_costs(config, axes, rows, cluster)
    schedule = choose_schedule(config)
    slots = order_of_chunks(schedule, chunk_layers(config, schedule.chunks), config.model).slots
    names = activation_names(config.model)
    if config.memory.remat == AUTO:
        least = _plan_keeping(config, device, node_devices, layer_runs("full", names, len(slots)))
        host = _host_limit(config, cluster if described else None, alone=usable is not None)
        tiled = {kind: _without_tiled(config, of_kind) for kind, of_kind in costs.items()}
        asked = auto_runs(config, least, tiled, own() if usable is None else usable, host)
    else:
        asked = layer_runs(config.memory.remat, names, len(slots))
    kept = without_hidden(asked, mlp_tiles(config, asked, schedule.splits_backward).number)
    kept = _partly_offloaded(config, kept, [costs[kind] for kind, _ in slots], known=cluster is not None)
    return _plan_keeping(config, device, node_devices, kept)


def _plan_keeping(config: Config, device: Device, node_devices: int | None, asked: Sequence[LayerRun]) -> Plan:
    """The layout in which layers keep what `asked` says, but for a feed-forward in tiles."""
    parallel, precision = config.parallel, config.precision
    axes = _axes(config)
    schedule = choose_schedule(config)
    in_tiles = mlp_tiles(config, asked, schedule.splits_backward).number
    runs = without_hidden(asked, in_tiles)
    requests = attention_requests(config, device, runs, node_devices)
    strategy = choose_context_strategy(parallel.context_strategy, widest(requests), config.attention.backend)
    layout = _context_layout(config, strategy.name, widest(requests))
    whole_rows = layout.ulysses == parallel.context
    backends = {
        kind: choose_backend(config.attention.backend, replace(request, whole_rows=whole_rows))
        for kind, request in requests.items()
    }
    return Plan(
        axes=axes,
        zero=parallel.zero,
        schedule=schedule.name,
        virtual_stages=schedule.virtual_stages,
        stage_layers=chunk_layers(config, schedule.chunks),
        pipe_ends=parallel.pipe_ends,
        pipe_ticks=parallel.pipe_ticks,
        microbatches=parallel.microbatches,
        microbatch_rows=config.data.batch_size // (axes.data * parallel.microbatches),
        remat=remat_name(config.memory.remat),
        runs=runs,
        dtypes=Dtypes(
            compute=precision.compute,
            storage=precision.storage or precision.compute,
            master=precision.master,
            gradient=precision.gradient,
            moments=precision.moments,
        ),
        attention=next(iter(backends.values())),
        kind_attention=backends if config.model.kinds else {},
        context_strategy=strategy,
        context_order=layout.order,
        ulysses=layout.ulysses,
        loss=choose_loss(config, device),
        loss_tiles=loss_tiles(config).number,
        mlp_tiles=in_tiles,
        optimizer_offload=config.memory.optimizer_offload,
        optimizer_resident=config.memory.optimizer_resident,
        weights_offload=config.memory.weights_offload,
        weights_resident=config.memory.weights_resident,
    )


def _host_limit(config: Config, described: Cluster | None, *, alone: bool) -> int:
    """Bytes of host memory for a device; `alone` where no other process is to be asked."""
    if described is not None:
        return described.host_limit(config.memory.host_limit)
    if config.memory.host_limit is not None:
        return config.memory.host_limit
    return own_host_share() if alone else host_share()


def _without_tiled(config: Config, costs: LayerCosts) -> LayerCosts:
    """`costs` without what a feed-forward in tiles does not keep, where the configuration asks for tiles."""
    if (config.memory.mlp_tiles or 1) == 1:
        return costs
    return replace(
        costs,
        sizes={name: size for name, size in costs.sizes.items() if name not in hidden_names()},
        recomputations=[one for one in costs.recomputations if not set(one.outputs) & hidden_names()],
    )


def _layer_costs(config: Config, axes: AxisSizes, rows: int, cluster: Cluster | None) -> dict[str, LayerCosts]:
    """What a layer of each kind can keep, and at which costs; without GPUs that are known, at those of an H100."""
    cluster = cluster or parse_cluster(f"h100:1x{axes.devices}")
    speeds = speeds_on(cluster, axes, config.precision.compute)
    models = kind_models(config.model).items()
    return {kind: layer_costs(layer_shape(replace(config, model=model), axes, rows), speeds) for kind, model in models}


def _partly_offloaded(
    config: Config, runs: Sequence[LayerRun], costs: Sequence[LayerCosts], *, known: bool
) -> tuple[LayerRun, ...]:
    """What layers keep, with `memory.offload_fraction` of it in host memory; `costs` are of each slot of a chunk.

    Raises `UserError` where a link that is `known` cannot hide the copies.
    """
    fraction, names = config.memory.offload_fraction, offloaded(runs)
    if fraction == 0:
        return tuple(runs)
    if names:
        raise UserError(
            f"memory.offload_fraction: {fraction:g} takes from all that is kept, and memory.remat offloads "
            f"{', '.join(names)} by name; expected one of the two"
        )
    each = [LayerRun(1, run.activations) for run in runs for _ in range(run.layers)]
    alike = [(own, list(group)) for own, group in groupby(zip(each, costs, strict=True), key=lambda pair: pair)]
    pieces = [(LayerRun(len(group), run.activations), own.sizes) for (run, own), group in alike]
    unit = sum(kept_bytes([run], sizes) for run, sizes in pieces)
    times = sum(own.forward_seconds for own in costs), sum(own.backward_seconds for own in costs)
    if known:
        check_hidden(fraction, unit, costs[0].host_bandwidth, *times)
    found = offload_share(pieces, fraction, config.memory.offload_smallest)
    if not offloaded(found):
        raise UserError(
            f"memory.offload_fraction: {fraction:g} moves nothing: no array that a layer keeps has "
            f"{mebibytes(config.memory.offload_smallest)} or more (memory.offload_smallest), or none is near that "
            f"share of {mebibytes(unit)}"
        )
    return found


def _context_layout(config: Config, strategy: str, request: AttentionRequest) -> ContextLayout:
    """How context ranks share a row; raises `UserError` where its length does not allow it."""
    order, length = config.parallel.context_order, config.data.sequence_length
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


def attention_requests(
    config: Config, device: Device, runs: Sequence[LayerRun], node_devices: int | None = None
) -> dict[str, AttentionRequest]:
    """What the attention of each kind of layers is asked for; see `attention_request`."""
    models = kind_models(config.model).items()
    return {kind: attention_request(replace(config, model=m), device, runs, node_devices) for kind, m in models}


def widest(requests: Mapping[str, AttentionRequest]) -> AttentionRequest:
    """The request of the kind whose window is widest: what the order of a row's tokens serves best."""
    return max(requests.values(), key=lambda request: request.sequence if request.window is None else request.window)


def attention_request(
    config: Config, device: Device, runs: Sequence[LayerRun], node_devices: int | None = None
) -> AttentionRequest:
    """What attention is asked for, on one device of the layout, by layers that keep `runs`; see `make_plan`."""
    model, parallel = config.model, config.parallel
    tensor, context = parallel.tensor, parallel.context
    at_hand = context if node_devices is None else gcd(context, max(1, node_devices // tensor))
    capability = getattr(device, "compute_capability", None)
    return AttentionRequest(
        platform=device.platform,
        dtype=config.precision.compute,
        heads=model.heads // tensor,
        kv_heads=max(1, kv_heads(model) // tensor),
        head_dim=head_dim(model),
        packed=config.data.packed,
        window=model.window,
        softcap=model.attention_softcap,
        prefix=False,
        sequence=config.data.sequence_length,
        context=context,
        rows=config.data.batch_size // (_axes(config).data * parallel.microbatches),
        attends_again=any(recomputed(runs, name) for name in SAVED_NAMES),
        ulysses=parallel.ulysses or neighbours(context, model.heads // tensor, at_hand),
        permutes=parallel.pipe == 1 or parallel.pipe_ticks == "uniform",
        compute_capability=None if capability is None else float(capability),
    )


def _axes(config: Config) -> AxisSizes:
    return AxisSizes(**{axis: getattr(config.parallel, axis) for axis in AXES})
