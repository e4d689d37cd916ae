"""Checks of what is offloaded, and of tiles."""

from __future__ import annotations

from jaxpar.config.axes import BATCH_AXES, SHARD_AXES
from jaxpar.config.checks.sizes import known
from jaxpar.config.errors import UserError
from jaxpar.config.parts import OPTIMIZERS
from jaxpar.config.schema import Config
from jaxpar.config.spelling import join_or, quoted


def check_offload(config: Config) -> None:
    """Refuse settings of offloading that exclude each other, or have no effect."""
    memory = config.memory
    if memory.offload_fraction and memory.remat == "auto":
        raise UserError(
            f"memory.offload_fraction: {memory.offload_fraction:g} takes from what memory.remat keeps, and auto "
            "chooses what goes to the host by itself; expected 0, or a memory.remat other than auto"
        )
    if memory.offload_dir is not None and memory.optimizer_offload != "file":
        raise UserError(
            f"memory.offload_dir: {quoted(memory.offload_dir)} would not be used, because memory.optimizer_offload is "
            f"{memory.optimizer_offload}; expected file with it, or null"
        )


def check_weights_offload(config: Config) -> None:
    """Refuse what `memory.weights_offload: host` cannot be combined with."""
    memory, parallel = config.memory, config.parallel
    if memory.weights_offload == "none":
        return
    choice = "memory.weights_offload: host"
    if memory.optimizer_offload != "host":
        raise UserError(
            f"{choice} reads layers from the master weights in host memory, and memory.optimizer_offload is "
            f"{memory.optimizer_offload}; expected memory.optimizer_offload: host with it"
        )
    if config.model.kinds:
        raise UserError(
            f"{choice} is for layers that are all alike, and model.kinds declares {', '.join(config.model.kinds)}; "
            "expected none with it"
        )
    if parallel.pipe != 1:
        raise UserError(
            f"{choice} is for runs without a pipeline, and parallel.pipe is {parallel.pipe}; expected 1, as a pipeline "
            "would fetch every layer over the link in each of its ticks"
        )
    if parallel.zero in (1, 2) and known(parallel, *SHARD_AXES) != 1:
        raise UserError(
            f"{choice} reads each layer from its master weights, and under parallel.zero: {parallel.zero} these are "
            "sharded differently from the weights; expected 0 or 3"
        )
    if not OPTIMIZERS[config.optimizer.name].by_layers:
        others = join_or(name for name, one in OPTIMIZERS.items() if one.by_layers)
        raise UserError(
            f"{choice} updates weights some layers at a time, and optimizer.name: {config.optimizer.name} takes the "
            f"matrices of all layers at once; expected {others}"
        )


def check_tiles(config: Config) -> None:
    """An axis of -1 counts as 1, so there are at most as many tokens as this finds."""
    parallel, data = config.parallel, config.data
    ranks = known(parallel, *BATCH_AXES, "context", "tensor") * parallel.microbatches
    tokens = data.batch_size * data.sequence_length // ranks
    for key in ("loss_tiles", "mlp_tiles"):
        tiles = getattr(config.memory, key)
        if tiles is not None and tiles > tokens:
            raise UserError(
                f"memory.{key}: expected at most as many as a device has tokens in a microbatch ({tokens}), got {tiles}"
            )
