"""Whether head and loss are XLA's, in tiles, or the kernel's."""

from __future__ import annotations

from jaxpar.config import Config, UserError
from jaxpar.config.plan import Choice
from jaxpar.mesh.devices import Device
from jaxpar.training.tiles import head_columns, head_tokens
from pallas_kernels.linear_cross_entropy.registry import Request, choose

KERNEL = "triton"


def choose_loss(config: Config, device: Device) -> Choice:
    """`xla` or `fused`, as `memory.loss_backend` says; `auto` asks the registry of the kernel.

    Raises `UserError` where `fused` is asked for and the kernel does not support the run.
    """
    asked, tiles = config.memory.loss_backend, config.memory.loss_tiles
    if asked == "fused" and tiles is not None:
        raise UserError(
            f"memory.loss_tiles: expected null with memory.loss_backend: fused, which has none, got {tiles}"
        )
    if asked == "xla":
        return Choice("xla", "named by memory.loss_backend", {"fused": "memory.loss_backend names xla"})
    if tiles is not None:
        return Choice("xla", "memory.loss_tiles asks for tiles", {"fused": "it has no tiles"})
    capability = getattr(device, "compute_capability", None)
    request = Request(
        platform=device.platform,
        dtype=config.precision.compute,
        tokens=head_tokens(config),
        embed=config.model.embed,
        columns=head_columns(config),
        compute_capability=None if capability is None else float(capability),
    )
    if asked == "auto":
        found = choose("auto", request)
        if found.name == KERNEL:
            return Choice("fused", "it holds no logits, and was right on such a device", {"xla": "fused is preferred"})
        return Choice("xla", "the kernel cannot be taken", {"fused": found.rejected[KERNEL]})
    try:
        found = choose(KERNEL, request)
    except ValueError as error:
        raise UserError(f"memory.loss_backend is 'fused', which does not support this run: {error}") from error
    reason = "named by memory.loss_backend" + ("" if found.verified else ", though unverified on such a device")
    return Choice("fused", reason, {"xla": "memory.loss_backend names fused"})
