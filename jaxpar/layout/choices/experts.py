"""How the experts of each kind of layers get their tokens, and which kernel multiplies them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxpar.config import Config, UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import AxisSizes, Choice, ExpertLayout, Plan
from jaxpar.config.reading.typed import shown
from jaxpar.config.spelling import did_you_mean, one_of, quoted
from jaxpar.distributed.devices import Device
from jaxpar.layers.experts.exchange import EXCHANGES, exchange_of
from jaxpar.layers.experts.feed_forward import width_of
from jaxpar.memory.layer_shape import layer_shapes
from pallas_kernels.grouped_matmul.registry import IMPLEMENTATIONS, Request, choose
from pallas_kernels.unsupported import Unsupported


def expert_layouts(config: Config, axes: AxisSizes, device: Device) -> dict[str, ExpertLayout]:
    """By kind of layers, of those that have experts, on devices like `device`.

    Raises `UserError` where the kernel that is named does not support the run.
    """
    asked, capacity, found = config.parallel.expert_exchange, config.parallel.expert_capacity, {}
    for kind, model in kind_models(config.model).items():
        if model.experts is not None:
            name: Any
            name, why = exchange_of(asked, model.experts, capacity, axes.expert, axes.tensor)
            found[kind] = ExpertLayout(exchange=name, capacity=capacity, reason=why)
    for kind, request in _requests(config, axes, device).items():
        products = _choose(config.parallel.expert_backend, request, "parallel.expert_backend", kind)
        found[kind] = replace(found[kind], products=products)
    return found


def check_expert_layouts(plan: Plan, config: Config, device: Device) -> None:
    """Raise `UserError` if those of a plan are not for the layers of the model, or cannot run on such devices."""
    asked = config.parallel.expert_exchange
    kinds = [kind for kind, model in kind_models(config.model).items() if model.experts is not None]
    if set(plan.experts) != set(kinds):
        found, wanted = (", ".join(map(quoted, each)) or "none" for each in (plan.experts, kinds))
        raise UserError(f"plan.experts: kinds of layers {found}, and those of the model with experts are {wanted}")
    for own in plan.experts.values():
        if own.exchange not in EXCHANGES or asked not in ("auto", own.exchange):
            wanted = " or ".join(EXCHANGES) if asked == "auto" else asked
            raise UserError(f"plan.experts: exchange: expected {wanted}, got {shown(own.exchange)}")
        if own.capacity != config.parallel.expert_capacity:
            raise UserError(
                f"plan.experts: capacity: {own.capacity:g}, and parallel.expert_capacity is "
                f"{config.parallel.expert_capacity:g}"
            )
    for kind, request in _requests(config, plan.axes, device).items():
        _choose(plan.experts[kind].products.name, request, "plan.experts: products", kind)


def _choose(name: str, request: Request, key: str, kind: str) -> Choice:
    known = ("auto", *(entry.name for entry in IMPLEMENTATIONS))
    if name not in known:
        raise UserError(f"{key} is {quoted(name)}; expected {one_of(known)}{did_you_mean(name, known)}")
    try:
        found = choose(name, request, named_by=f"{key} names")
    except Unsupported as error:
        layers = f"the layers of kind {kind}" if kind else "this run"
        raise UserError(f"{key} is {name!r}, which does not support {layers}: {error.refused[name]}") from None
    return Choice(found.name, found.reason, found.rejected)


def _requests(config: Config, axes: AxisSizes, device: Device) -> dict[str, Request]:
    """By kind with experts, the products of one device."""
    rows = config.data.batch_size // (axes.data * config.parallel.microbatches)
    capability = getattr(device, "compute_capability", None)
    return {
        kind: Request(
            platform=device.platform,
            dtype=config.precision.compute,
            m=shape.routed_rows,
            groups=shape.model.experts.count // axes.expert,
            k=shape.model.embed,
            n=width_of(shape.model) // axes.tensor,
            compute_capability=None if capability is None else float(capability),
            gpu=getattr(device, "device_kind", ""),
            processors=getattr(device, "core_count", None),
        )
        for kind, shape in layer_shapes(config, axes, rows).items()
        if shape.model.experts is not None
    }
