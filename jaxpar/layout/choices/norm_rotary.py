"""Whether XLA or a kernel norms queries and keys of each head and rotates them."""

from __future__ import annotations

from jaxpar.attention.choosing import choose_kernel
from jaxpar.config import Config, ModelConfig, UserError
from jaxpar.config.counting import head_dim, kv_heads, rotary_dim
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import Choice, Plan
from jaxpar.config.spelling import one_of, quoted
from jaxpar.distributed.devices import Device
from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layout.choices.hardware import hardware_of
from jaxpar.layout.choices.tiles import head_tokens
from pallas_kernels.norm_rotary.registry import REGISTRY, Request
from pallas_kernels.unsupported import Unsupported

_KEY = "attention.norm_rotary"


def choose_norm_rotary(config: Config, device: Device) -> Choice:
    """`xla` or a kernel, as `attention.norm_rotary` asks; `auto` takes a kernel that may run in all layers with both.

    Raises `UserError` where a kernel is asked for and no layer would run it, or it does not support one.
    """
    asked, requests = config.attention.norm_rotary, norm_rotary_requests(config, device)
    if not requests:
        if asked not in ("auto", "xla"):
            raise UserError(
                f"{_KEY}: {asked} would not be used, because no layer has norms of each head (model.qk_norm: true) and "
                "rotary embeddings (model.position: rope); expected auto"
            )
        return Choice("xla")
    if (partly := _partly(config)) is not None:
        if asked not in ("auto", "xla"):
            raise UserError(f"{_KEY}: {asked} {partly}; expected auto")
        return Choice("xla", f"triton {partly}")
    found = [choose_kernel(REGISTRY, asked, request, _KEY) for request in requests]
    return next((one for one in found if one.name == "xla"), found[0])


def norm_rotary_on(config: Config, gpu: GPU) -> str:
    """What norms and rotates on GPUs of a cluster; `xla` too where what is asked for supports no such run, which is
    refused."""
    requests = [] if _partly(config) else norm_rotary_requests(config, DescribedGPU.of(gpu))
    asked = config.attention.norm_rotary
    try:
        names = [REGISTRY.choose(asked, request).name for request in requests]
    except Unsupported:
        return "xla"
    return "xla" if "xla" in names or not names else names[0]


def check_norm_rotary(plan: Plan, config: Config, device: Device) -> None:
    """Raise `UserError` if the choice of a plan cannot run on devices like `device`."""
    known = [entry.name for entry in REGISTRY.entries]
    if plan.norm_rotary.name not in known:
        raise UserError(f"plan.norm_rotary: expected {one_of(known)}, got {quoted(plan.norm_rotary.name)}")
    if plan.norm_rotary.name != "xla" and (partly := _partly(config)) is not None:
        raise UserError(f"plan.norm_rotary: {plan.norm_rotary.name} {partly}; expected xla")
    for request in norm_rotary_requests(config, device):
        choose_kernel(REGISTRY, plan.norm_rotary.name, request, "plan.norm_rotary")


def _partly(config: Config) -> str | None:
    """Why a kernel cannot run in all layers with both, in a clause: heads of some rotate in part."""
    for model in normed_and_rotated(config):
        if (width := rotary_dim(model)) < head_dim(model):
            return f"rotates whole heads, not {width} of {head_dim(model)} dims (model.rope.partial)"
    return None


def norm_rotary_requests(config: Config, device: Device) -> list[Request]:
    """What queries and keys of each kind of layers with both ask of a kernel, on one device."""
    return [
        Request(
            **hardware_of(device),
            dtype=config.precision.compute,
            tokens=head_tokens(config),
            heads=max(1, heads // config.parallel.tensor),
            head_dim=head_dim(model),
        )
        for model in normed_and_rotated(config)
        for heads in (model.heads, kv_heads(model))
    ]


def normed_and_rotated(config: Config) -> list[ModelConfig]:
    """The kinds of layers that norm queries and keys of each head and rotate them."""
    kinds = kind_models(config.model).values()
    return [model for model in kinds if model.qk_norm is True and model.position == "rope"]
