"""The choice of an implementation that passes the states of mixers through chunks of tokens."""

from __future__ import annotations

from jaxpar.attention.choosing import choose_kernel
from jaxpar.config import Config, UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import AxisSizes, Choice, Plan
from jaxpar.distributed.devices import Device
from jaxpar.layers.declaration.part import Recurrence
from jaxpar.layers.declared import declare_layer, mixer_classes
from jaxpar.layers.linear_attention.mixer import LinearAttention, sizes_of
from jaxpar.layout.choices.hardware import hardware_of
from pallas_kernels.linear_attention import CHUNK
from pallas_kernels.linear_attention.registry import REGISTRY, Request

KEY = "attention.linear_backend"


def linear_backends(config: Config, axes: AxisSizes, device: Device, rows: int) -> dict[str, Choice[str]]:
    """Implementations by kind of layers with a state: the meaning of `attention.linear_backend` on devices like
    `device`, with so many rows in a microbatch on each. Raises `UserError` for a backend that does not support the
    run, or has nothing to do.
    """
    asked, requests = config.attention.linear_backend, _requests(config, axes, device, rows)
    if asked != "auto" and not requests:
        raise UserError(f"{KEY}: {asked} would not be used, because no layer has a mixer with a state; expected auto")
    return {kind: choose_kernel(REGISTRY, asked, request, KEY, kind) for kind, request in requests.items()}


def check_linear_backends(plan: Plan, config: Config, device: Device) -> None:
    """Raise `UserError` if a plan passes states through chunks in a way that is not possible, or not the named one."""
    requests, asked = _requests(config, plan.axes, device, plan.microbatch_rows), config.attention.linear_backend
    if plan.linear_attention.keys() != requests.keys():
        planned, wanted = (", ".join(kinds) or "none" for kinds in (plan.linear_attention, requests))
        raise UserError(
            f"plan.linear_attention: is of the kinds {planned}; expected those of the layers with a state, {wanted}"
        )
    for kind, request in requests.items():
        name, key = plan.linear_attention[kind].name, f"plan.linear_attention.{kind}"
        choose_kernel(REGISTRY, name, request, key, kind)
        if asked not in ("auto", name):
            raise UserError(f"{key}: {name}, and {KEY} is {asked}")


def _requests(config: Config, axes: AxisSizes, device: Device, rows: int) -> dict[str, Request]:
    """States of one device, by kind of layers with a state. Context ranks also fold their tokens to a map of states
    by the delta rule, whose columns are as many values more."""
    tokens, requests = config.data.sequence_length // axes.context, {}
    for kind, model in kind_models(config.model).items():
        if any(issubclass(block, LinearAttention) for block in mixer_classes(model)):
            sizes = sizes_of(model)
            mapped = [one.mapped for _, one in declare_layer(model).operations if isinstance(one, Recurrence)]
            delta = mapped[0] == sizes.heads * 4 * sizes.key_dim**2
            requests[kind] = Request(
                **hardware_of(device),
                dtype=config.precision.compute,
                chunks=-(-tokens // CHUNK),
                heads=rows * sizes.heads // axes.tensor,
                size=CHUNK,
                key=sizes.key_dim,
                value=sizes.value_dim + (sizes.key_dim if delta and axes.context > 1 else 0),
                delta=delta,
            )
    return requests
