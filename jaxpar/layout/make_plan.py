"""The `Plan` of a configuration for the given devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import groupby

from jaxpar.config import Config, UserError
from jaxpar.config.axes import axis_sizes, resolve_axes
from jaxpar.config.plan import AxisSizes, Dtypes, LayerRun, Plan
from jaxpar.config.reading.options import matrix_dtype
from jaxpar.distributed.devices import Device, cluster_of
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.hardware.memory import pool_bytes
from jaxpar.layers.declared import activation_names, hidden_names
from jaxpar.layout.auto_remat import auto_runs, costs_of_kinds
from jaxpar.layout.checks.validate import validate
from jaxpar.layout.choices.attention import attention_plan
from jaxpar.layout.choices.embedding import embedding_messages
from jaxpar.layout.choices.experts import expert_layouts
from jaxpar.layout.choices.linear_attention import linear_backends
from jaxpar.layout.choices.matmul import check_matmul_units, routed_choice, tiled_choice
from jaxpar.layout.choices.overlap import tensor_overlap
from jaxpar.layout.choices.pipeline import choose_schedule, chunk_layers, order_of_chunks
from jaxpar.layout.choices.replica_state import state_over_replicas
from jaxpar.layout.choices.state_messages import state_messages
from jaxpar.layout.choices.tiles import loss_tiles, mlp_tiles, without_hidden
from jaxpar.layout.choices.transport import check_transport
from jaxpar.layout.compiler_choices import with_host_buffers, with_joined_messages, with_merged_matmuls
from jaxpar.layout.layer_unroll import layer_unroll, with_lower_unroll
from jaxpar.layout.memory.device import host_share, local_host_share, usable_bytes
from jaxpar.layout.resident_state import with_resident_state
from jaxpar.layout.weight_prefetch import weight_prefetch
from jaxpar.memory.costs import LayerCosts
from jaxpar.memory.fraction import STAYS_BELOW, offload_share, saved_bytes
from jaxpar.memory.pipeline_offload import check_hidden
from jaxpar.memory.remat import AUTO, layer_runs, offloaded, remat_name
from jaxpar.pages.units import size


def resolve_config(config: Config, devices: int, *, validated: bool = False) -> Config:
    """`config` with the mesh axis of -1 filled in for `devices`, checked; `validated` if it was checked before. Raises
    `UserError`."""
    if config.parallel.auto:
        raise UserError(
            "parallel: auto is planned when python -m jaxpar.train starts; plan first, with python -m jaxpar.plan, and "
            "use what it writes"
        )
    resolved = replace(config, parallel=resolve_axes(config.parallel, devices))
    validate(resolved, config if validated else None)
    return resolved


def with_vocab(config: Config, vocab: int) -> Config:
    """The validated `config` with the vocabulary that the data has, checked. Raises `UserError`."""
    known = replace(config, model=replace(config.model, vocab=vocab))
    validate(known, config)
    return known


def make_plan(
    config: Config,
    device: Device,
    node_devices: int | None = None,
    cluster: Cluster | None = None,
    usable: int | None = None,
) -> Plan:
    """The layout of a resolved `config` on devices like `device`, in nodes of `node_devices` (None: all in one).

    `cluster` has the speeds of GPUs and links and the memory; by default those that are known for `device`.
    `usable` is what a program may take of a device, in bytes; by default the processes of the job agree on it.
    Raises `UserError` for a choice that does not support it.
    """
    parallel, memory = config.parallel, config.memory
    axes = AxisSizes(**axis_sizes(parallel))
    rows = config.data.batch_size // (axes.data * parallel.microbatches)
    schedule = choose_schedule(config)
    stage_layers = chunk_layers(config, schedule.chunks)
    kinds = [slot.kind for slot in order_of_chunks(schedule, stage_layers, config.model).slots]
    at_hand = cluster or cluster_of(device, axes.devices, node_devices)
    settled = _settled(config, device, node_devices, at_hand, rows)
    timed_on = at_hand or parse_cluster(f"h100:1x{axes.devices}")  # for unknown devices
    costs = costs_of_kinds(config, timed_on, unknown=at_hand is None or device.platform == "cpu")

    device_bytes = cache(partial(_device_bytes, usable, cluster))

    def with_room(plan: Plan) -> Plan:
        """`plan`, with one layer in a turn of the loop where there is no memory for more."""
        return plan if plan.layer_unroll.name == 1 else with_lower_unroll(config, plan, device_bytes())

    def keeping(asked: Sequence[LayerRun]) -> Plan:
        """The layout in which layers keep what is configured, without what a feed-forward in tiles cannot keep."""
        tiles = mlp_tiles(config, asked, schedule.splits_backward)
        treated = without_hidden(asked, tiles.name)
        treated = _partly_offloaded(config, treated, [costs[kind] for kind in kinds], known=at_hand is not None)
        attention = attention_plan(config, device, treated, node_devices)
        overlap = tensor_overlap(config, device, at_hand, rows, tiles.name)
        plan = settled(
            layer_unroll=layer_unroll(config, axes, device, treated, kinds),
            weight_prefetch=weight_prefetch(config, axes, device, treated),
            runs=treated,
            mlp_tiles=tiles,
            tensor_overlap=overlap,
            **attention._asdict(),
        )
        routed_choice(config, device, plan)
        return with_merged_matmuls(config, with_room(with_joined_messages(config, plan)), device)

    def finished(plan: Plan) -> Plan:
        """`plan`, whose layers keep what they do, with what depends on the memory that is left."""
        return with_host_buffers(config, with_resident_state(config, plan, device, device_bytes), device, device_bytes)

    names = activation_names(config.model)
    if memory.remat != AUTO:
        return finished(keeping(layer_runs(memory.remat, names, len(kinds))))
    host = _host_limit(config, cluster, alone=usable is not None)
    tiled = {kind: _without_tiled(config, of_kind) for kind, of_kind in costs.items()}
    full = keeping(layer_runs("full", names, len(kinds)))
    return finished(keeping(auto_runs(config, full, tiled, device_bytes(), host)))


def _device_bytes(usable: int | None, cluster: Cluster | None) -> int:
    """Bytes that a program may take of a device, as for `make_plan`."""
    if usable is not None:
        return usable
    return usable_bytes() if cluster is None else pool_bytes(cluster.device_bytes)


def _settled(
    config: Config, device: Device, node_devices: int | None, cluster: Cluster | None, rows: int
) -> Callable[..., Plan]:
    """The plan, given what depends on what layers keep. Raises `UserError` for a choice that is not supported."""
    parallel, memory = config.parallel, config.memory
    axes, schedule = AxisSizes(**axis_sizes(parallel)), choose_schedule(config)
    settled = partial(
        Plan,
        axes=axes,
        zero=parallel.zero,
        schedule=schedule.name,
        virtual_stages=schedule.virtual_stages,
        stage_layers=chunk_layers(config, schedule.chunks),
        pipe_ends=parallel.pipe_ends,
        pipe_ticks=parallel.pipe_ticks,
        microbatches=parallel.microbatches,
        microbatch_rows=rows,
        remat=remat_name(memory.remat),
        experts=expert_layouts(config, axes, device, cluster, rows, node_devices),
        loss_tiles=loss_tiles(config),
        dtypes=_dtypes(config, device),
        hpz=parallel.hpz or 1,
        collectives_at_once=max(parallel.overlap.collectives_at_once, 2 if config.islands.overlaps_step else 1),
        node_devices=check_transport(config, axes, node_devices),
        embedding_messages=embedding_messages(config, axes, device, rows, cluster),
        state_messages=state_messages(config, axes, device, rows, cluster),
        linear_attention=linear_backends(config, axes, device, rows),
        shard_state_over_replicas=state_over_replicas(config, axes, device),
        optimizer_offload=memory.optimizer_offload,
        weights_offload=memory.weights_offload,
    )
    check_matmul_units(config, device)
    tiled_choice(config, device)
    return settled


def _dtypes(config: Config, device: Device) -> Dtypes:
    precision, matrix = config.precision, matrix_dtype(config.optimizer)
    if matrix == "auto":
        matrix = "float32" if device.platform == "cpu" else "bfloat16"
    return Dtypes(
        compute=precision.compute,
        storage=precision.storage or precision.compute,
        master="float32",
        gradient=precision.gradient,
        moments=precision.moments,
        weight_message=config.parallel.quantized.weights,
        gradient_message=config.parallel.quantized.gradients,
        matmul=precision.matmul,
        matrix=matrix,
    )


def _host_limit(config: Config, described: Cluster | None, *, alone: bool) -> int:
    """Bytes of host memory for a device; `alone` if the other processes are not to be asked."""
    if described is not None:
        return described.host_limit(config.memory.host_limit)
    if config.memory.host_limit is not None:
        return config.memory.host_limit
    return local_host_share() if alone else host_share()


def _without_tiled(config: Config, costs: LayerCosts) -> LayerCosts:
    """`costs` without what a feed-forward in tiles does not keep, if the configuration asks for tiles."""
    if (config.memory.mlp_tiles or 1) == 1:
        return costs
    return replace(
        costs,
        sizes={name: size for name, size in costs.sizes.items() if name not in hidden_names()},
        recomputations=[one for one in costs.recomputations if not set(one.outputs) & hidden_names()],
    )


def _partly_offloaded(
    config: Config, runs: Sequence[LayerRun], costs: Sequence[LayerCosts], *, known: bool
) -> tuple[LayerRun, ...]:
    """Remat of each layer, with `memory.offload_fraction` in host memory; `costs` has those of each slot of a chunk.

    Raises `UserError` if a link of `known` speed cannot hide the copies.
    """
    fraction, names = config.memory.offload_fraction, offloaded(runs)
    if fraction == 0:
        return tuple(runs)
    if names:
        raise UserError(
            f"memory.offload_fraction: {fraction:g} offloads a share of all that is kept, and memory.remat offloads "
            f"{', '.join(names)} by name; expected one of the two"
        )
    each = [LayerRun(1, run.activations) for run in runs for _ in range(run.layers)]
    alike = [(cost, list(group)) for cost, group in groupby(zip(each, costs, strict=True), key=lambda pair: pair)]
    pieces = [(LayerRun(len(group), run.activations), cost.sizes) for (run, cost), group in alike]
    unit = sum(saved_bytes([run], sizes) for run, sizes in pieces)
    times = sum(cost.forward_seconds for cost in costs), sum(cost.backward_seconds for cost in costs)
    if known:
        check_hidden(fraction, unit, costs[0].host_bandwidth, *times)
    offloading = offload_share(pieces, fraction)
    if not offloaded(offloading):
        raise UserError(
            f"memory.offload_fraction: {fraction:g} moves nothing: no array that a layer keeps has "
            f"{size(STAYS_BELOW)} or more, or none is near that share of {size(unit)}"
        )
    return offloading
