"""Exchange of the tokens of experts in each kind of layers, and the kernel that multiplies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxpar.attention.choosing import choose_kernel
from jaxpar.config import Config, UserError
from jaxpar.config.kinds import kind_clause, kind_models
from jaxpar.config.plan import AxisSizes, Choice, ExpertLayout, Plan
from jaxpar.config.reading.typed import shown
from jaxpar.config.schema.layout import expert_options
from jaxpar.config.spelling import quoted
from jaxpar.cost import hardware_model
from jaxpar.cost.experts import Experts
from jaxpar.cost.messages import network_of
from jaxpar.cost.operations import device_of
from jaxpar.distributed.devices import Device
from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layers.counting import matmul_parameters
from jaxpar.layers.experts.declaration import width_of
from jaxpar.layers.experts.exchange import EXCHANGES
from jaxpar.layers.experts.messages import exchange_of, row_bytes_of_ways, rows_sent
from jaxpar.layout.choices.hardware import hardware_of
from jaxpar.layout.choices.matmul import expert_quantization
from jaxpar.memory.layer_shape import ITEM_BYTES, LayerShape, layer_shapes
from jaxpar.mesh.quantized.transport import split_by_nodes
from jaxpar.pages.units import count, seconds, size
from pallas_kernels.grouped_matmul.registry import REGISTRY, Request


def expert_layouts(
    config: Config, axes: AxisSizes, device: Device, cluster: Cluster | None, rows: int, node_devices: int | None
) -> dict[str, ExpertLayout]:
    """Choices by kind of layers with experts.

    Args:
        config: It is resolved.
        axes: The mesh.
        device: One of the run's.
        cluster: With the speeds of GPUs and links, where they are known.
        rows: Of a microbatch on a device.
        node_devices: Devices of a node; None if all are in one.

    Raises:
        UserError: The nodes or the tokens do not divide as they are asked to, or the kernel that is named does not
            support the run.
    """
    options, layouts, shapes = config.parallel.experts, {}, layer_shapes(config, axes, rows)
    for kind, model in kind_models(config.model).items():
        if model.experts is not None:
            name, why = exchange_of(options.exchange, model.experts, options.capacity, axes.expert, axes.tensor)
            slices = _slices(config, shapes[kind], axes, device, cluster, rows)
            chosen: Any = name
            layouts[kind] = ExpertLayout(
                Choice(chosen, why if axes.expert * axes.tensor > 1 else ""),
                options.capacity,
                slices=slices,
                own_first=_local_first(config, shapes[kind], name, slices.name, device, cluster),
                node_devices=_check_nodes(axes, node_devices) if name == "hierarchical" else None,
                sent_dtype=config.parallel.quantized.tokens,
            )
    for kind, request in _requests(config, axes, device, layouts, rows).items():
        products = choose_kernel(REGISTRY, options.backend, request, "parallel.experts.backend", kind)
        layouts[kind] = replace(layouts[kind], products=products)
    return layouts


def sent_bytes(config: Config, plan: Plan, kind: str) -> float:
    """Bytes that a device sends in a step for the tokens of one layer of a kind: those of one round of the exchange, by
    its formula, without what is recomputed."""
    model, axes, chosen, data = kind_models(config.model)[kind], plan.axes, plan.experts[kind], config.data
    assert model.experts is not None, "a kind with experts"
    ranks = axes.data * axes.context * axes.tensor
    rows = rows_sent(chosen.exchange.name, model.experts, chosen.capacity, axes.expert, axes.tensor)
    each = row_bytes_of_ways(model.embed, ITEM_BYTES[plan.dtypes.compute], chosen.sent_dtype)
    return data.batch_size * data.sequence_length / ranks * rows * each


def expert_rows(config: Config, plan: Plan) -> list[tuple[str, str, str]]:
    """Rows of the plan's table: the experts of each kind of layers that has some, and how tokens reach them."""
    model, axes, rows = config.model, plan.axes, []
    for kind, kind_model in kind_models(model).items():
        if (experts := kind_model.experts) is None:
            continue
        shared = f" and {experts.shared} shared" if experts.shared else ""
        used = f"a token is multiplied with {count(matmul_parameters(model, model.vocab or 0))} weights of the model"
        words = f"router {experts.router}; {experts.count // axes.expert} per device; {used}"
        rows.append((f"experts{kind_clause(kind)}", f"{experts.count}, {experts.per_token} per token{shared}", words))
        if axes.expert > 1:
            chosen, each = plan.experts[kind], size(round(sent_bytes(config, plan, kind)))
            rounded = f" in {chosen.sent_dtype} to experts" if chosen.sent_dtype else ""
            words = (
                f"a device sends {each} for a layer in a step{rounded}; room for {chosen.capacity:g} times an even "
                "share, and further rounds where it is exceeded"
            )
            rows.append((f"exchanged tokens{kind_clause(kind)}", plan.dtypes.compute, words))
    return rows


def check_expert_layouts(plan: Plan, config: Config, device: Device, node_devices: int | None) -> None:
    """Raise `UserError` if those of a plan are not for the layers of the model, or cannot run on such devices."""
    options = expert_options(config.parallel)
    asked = options.exchange
    kinds = [kind for kind, model in kind_models(config.model).items() if model.experts is not None]
    if set(plan.experts) != set(kinds):
        planned, wanted = (", ".join(map(quoted, each)) or "none" for each in (plan.experts, kinds))
        raise UserError(f"plan.experts: kinds of layers {planned}, and those of the model with experts are {wanted}")
    tokens = _tokens(config, plan.axes, plan.microbatch_rows)
    for layout in plan.experts.values():
        exchange, slices = layout.exchange.name, layout.slices.name
        if exchange not in EXCHANGES or asked not in ("auto", exchange):
            wanted = " or ".join(EXCHANGES) if asked == "auto" else asked
            raise UserError(f"plan.experts: exchange: expected {wanted}, got {shown(exchange)}")
        if layout.capacity != options.capacity:
            raise UserError(
                f"plan.experts: capacity: {layout.capacity:g}, and parallel.experts.capacity is {options.capacity:g}"
            )
        if layout.sent_dtype != config.parallel.quantized.tokens:
            raise UserError(
                f"plan.experts: sent_dtype: {shown(layout.sent_dtype)}, and parallel.quantized.tokens is "
                f"{shown(config.parallel.quantized.tokens)}"
            )
        if tokens % slices or options.slices not in ("auto", slices):
            asked_for = "" if options.slices == "auto" else f" is {options.slices}, and"
            raise UserError(
                f"plan.experts: slices: {slices}, and parallel.experts.slices{asked_for} divides the {tokens} "
                "tokens of a rank"
            )
        _check_local_first(
            layout.own_first.name, options.own_rows, _exchange_reason(exchange, slices, plan.axes.tensor)
        )
        wanted = _check_nodes(plan.axes, node_devices) if exchange == "hierarchical" else None
        if layout.node_devices != wanted:
            raise UserError(
                f"plan.experts: node_devices: {shown(layout.node_devices)}, and the exchange {exchange} here wants "
                f"{shown(wanted)}"
            )
    for kind, request in _requests(config, plan.axes, device, plan.experts, plan.microbatch_rows).items():
        layout = plan.experts[kind]
        choose_kernel(REGISTRY, layout.products.name, request, "plan.experts: products", kind)


def _check_local_first(own_first: bool, asked: str, why_not: str | None) -> None:
    if own_first and why_not:
        raise UserError(f"plan.experts: own_first: expected false, because {why_not}, got true")
    if asked != "auto" and own_first != (asked == "first"):
        raise UserError(f"plan.experts: own_first: {shown(own_first)}, and parallel.experts.own_rows is {asked}")


def _requests(
    config: Config, axes: AxisSizes, device: Device, layouts: Mapping[str, ExpertLayout], rows: int
) -> dict[str, Request]:
    """Products of a slice on one device, by kind with experts, for a number of rows per microbatch."""
    return {
        kind: Request(
            **hardware_of(device),
            dtype=config.precision.compute,
            m=shape.routed_rows // layouts[kind].slices.name,
            groups=shape.model.experts.count // axes.expert,
            k=shape.model.embed,
            n=width_of(shape.model) // axes.tensor,
        )
        for kind, shape in layer_shapes(config, axes, rows).items()
        if shape.model.experts is not None
    }


def loops_on(config: Config, axes: AxisSizes, gpu: GPU, rows: int) -> bool:
    """Whether GPUs of a cluster multiply experts in a loop of plain XLA, of so many rows a microbatch; of a kernel that
    is named and does not support them, which a run refuses, they do not."""
    whole, asked = dict.fromkeys(kind_models(config.model), ExpertLayout()), config.parallel.experts.backend
    try:
        return any(
            choose_kernel(REGISTRY, asked, request, "parallel.experts.backend", kind).name == "xla"
            for kind, request in _requests(config, axes, DescribedGPU.from_gpu(gpu), whole, rows).items()
        )
    except UserError:
        return False


def _check_nodes(axes: AxisSizes, node_devices: int | None) -> int:
    """Devices of a node, at whose border an exchange in two levels is cut."""
    levels = split_by_nodes(dict(axes), ("expert",), node_devices)
    key = "parallel.experts.exchange: hierarchical"
    if levels is None:
        raise UserError(
            f"{key} sends inside nodes first, and the ranks of parallel.expert {axes.expert} are not spread evenly "
            f"over nodes of {node_devices} devices; expected sizes that fill whole nodes, or divide one"
        )
    if 1 in levels or node_devices is None:
        where = "are all in one node" if levels.nodes == 1 else "are each in a node of their own"
        raise UserError(
            f"{key} would not be used, because the ranks of parallel.expert {axes.expert} {where}; expected all_to_all"
        )
    return node_devices


def _tokens(config: Config, axes: AxisSizes, rows: int) -> int:
    """Tokens of a rank's own in a microbatch."""
    return rows * config.data.sequence_length // (axes.context * axes.tensor)


def _slices(
    config: Config, shape: LayerShape, axes: AxisSizes, device: Device, cluster: Cluster | None, rows: int
) -> Choice[int]:
    """The number of slices."""
    asked, tokens = expert_options(config.parallel).slices, _tokens(config, axes, rows)
    if axes.expert == 1:
        if asked not in ("auto", 1):
            raise UserError(
                f"parallel.experts.slices: {asked} would not be used, because parallel.expert is 1; expected auto or 1"
            )
        return Choice(1)
    if asked != "auto":
        if tokens % asked:
            raise UserError(
                f"parallel.experts.slices: {asked} do not divide the {tokens} tokens of a rank in a microbatch; "
                "expected a divisor, or auto"
            )
        return Choice(asked, "named by parallel.experts.slices")
    if device.platform == "cpu":
        return Choice(1, "CPU devices overlap nothing")
    if cluster is None:
        return Choice(1, "the speeds of these devices and their links are unknown")
    experts = _timed(config, shape, device, cluster)
    best = experts.slices
    least = seconds(experts.seconds(best))
    otherwise = f"{seconds(experts.seconds(1))} in one" if best > 1 else "and more in slices"
    return Choice(best, f"experts and exchange of a layer and microbatch are expected to take {least}, {otherwise}")


def _timed(config: Config, shape: LayerShape, device: Device, cluster: Cluster) -> Experts:
    """The experts of a layer on the GPUs and links of a cluster."""
    hardware = hardware_model.hardware_of(cluster.gpu)
    shape = replace(shape, quantization=expert_quantization(config, device))
    on = device_of(cluster.gpu, hardware), network_of(cluster, hardware)
    return Experts(shape, *on, own_rows=config.parallel.experts.own_rows)


def _exchange_reason(exchange: str, slices: int, tensor: int) -> str | None:
    """The reason why a rank's own rows are not computed apart; None where they may be."""
    if exchange == "all_gather":
        return "all_gather sends all tokens to all ranks"
    if tensor > 1:
        return f"rows are joined from parallel.tensor {tensor} ranks, which takes a message too"
    return "tokens are sent in one piece" if slices == 1 else None


def _local_first(
    config: Config, shape: LayerShape, exchange: str, slices: int, device: Device, cluster: Cluster | None
) -> Choice[bool]:
    """Whether a rank computes its rows for its experts apart, first."""
    asked, why = config.parallel.experts.own_rows, _exchange_reason(exchange, slices, shape.tensor)
    if why is not None:
        if asked == "first":
            raise UserError(f"parallel.experts.own_rows: first is not possible, because {why}; expected auto")
        return Choice(False, why if shape.expert > 1 else "")
    if asked != "auto":
        return Choice(asked == "first", "named by parallel.experts.own_rows")
    if device.platform == "cpu":
        return Choice(False, "CPU devices overlap nothing")
    if cluster is None:
        return Choice(False, "the speeds of these devices and their links are unknown")
    experts = _timed(config, shape, device, cluster)
    apart, exchanged = (experts.seconds(slices, first=first) for first in (True, False))
    return Choice(
        apart < exchanged,
        f"experts and exchange of a layer and microbatch are expected to take {seconds(apart)} with them first, "
        f"{seconds(exchanged)} without",
    )
