"""Whether head and loss are computed by XLA, in tiles, or by the fused kernel."""

from __future__ import annotations

from jaxpar.config import Config, UserError
from jaxpar.config.parts import OBJECTIVES
from jaxpar.config.plan import Choice, Plan
from jaxpar.config.spelling import quoted
from jaxpar.distributed.devices import Device
from jaxpar.layout.choices.hardware import hardware_of
from jaxpar.layout.choices.tiles import head_columns, head_tokens
from pallas_kernels.linear_cross_entropy.registry import REGISTRY, Request

KERNEL = "triton"


def choose_loss(config: Config, device: Device) -> Choice:
    """`xla` or `fused`, as `memory.loss_backend` asks; `auto` asks the registry of the kernel.

    Raises `UserError` where `fused` is asked for and the kernel does not support the run.
    """
    asked, tiles = config.memory.loss_backend, config.memory.loss_tiles
    if asked == "fused" and tiles is not None:
        raise UserError(
            f"memory.loss_tiles: expected null with memory.loss_backend: fused, which has none, got {tiles}"
        )
    if asked == "xla":
        return Choice("xla", "named by memory.loss_backend", {"fused": "memory.loss_backend names xla"})
    if config.model.head_bias and asked == "auto":
        return Choice("xla", "logits have a bias", {"fused": "it has no bias"})
    if OBJECTIVES[config.loss.name].teacher:
        return Choice("xla", "a token has several labels", {"fused": "it has one label of each token"})
    if tiles is not None:
        return Choice("xla", "memory.loss_tiles asks for tiles", {"fused": "it has no tiles"})
    request = _request(config, device)
    if asked == "auto":
        found = REGISTRY.choose("auto", request)
        if found.name == KERNEL:
            return Choice("fused", "it holds no logits, and was verified on such a GPU", {"xla": "fused is preferred"})
        reason = "the kernel cannot be taken" if request.platform == "gpu" else "it runs on any device"
        return Choice("xla", reason, {"fused": found.rejected[KERNEL]})
    try:
        found = REGISTRY.choose(KERNEL, request)
    except ValueError as error:
        raise UserError(f"memory.loss_backend is 'fused', which does not support this run: {error}") from error
    reason = "named by memory.loss_backend" + ("" if found.verified else ", though unverified on such a device")
    return Choice("fused", reason, {"xla": "memory.loss_backend names fused"})


def check_loss(plan: Plan, config: Config, device: Device) -> None:
    """Raise `UserError` if the loss of a plan cannot run on devices like `device`."""
    if plan.loss.name == "xla":
        return
    if plan.loss.name != "fused":
        raise UserError(f"plan.loss: expected xla or fused, got {quoted(plan.loss.name)}")
    try:
        REGISTRY.choose(KERNEL, _request(config, device))
    except ValueError as error:
        raise UserError(f"plan.loss is 'fused', which does not support this run: {error}") from error


def _request(config: Config, device: Device) -> Request:
    """The request of the head to a kernel, on one device."""
    return Request(
        **hardware_of(device),
        dtype=config.precision.compute,
        tokens=head_tokens(config),
        embed=config.model.embed,
        columns=head_columns(config),
    )
