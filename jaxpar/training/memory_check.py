"""Whether a run fits, asked before anything is allocated."""

from __future__ import annotations

import os
from math import prod

import jax

from jaxpar.config import UserError
from jaxpar.training.step import TrainStep

ADVICE = (
    "raise parallel.microbatches, choose memory.remat: full (and layer_input: offload) or parallel.zero: 3, or shard "
    "over more devices"
)


def state_bytes(step: TrainStep) -> int:
    """Bytes of master weights and moments on one device."""
    leaves = jax.tree.leaves(step.abstract_state())
    return sum(prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def needed_bytes(compiled: jax.stages.Compiled) -> int | None:
    """What a compiled program needs per device: arguments, temporaries and output; None where XLA does not say."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    sizes = analysis.argument_size_in_bytes, analysis.output_size_in_bytes, analysis.temp_size_in_bytes
    return sum(sizes) - analysis.alias_size_in_bytes


def mebibytes(count: int) -> str:
    """A size for people."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def memory_limit(step: TrainStep) -> tuple[int, int]:
    """(bytes that this process may use, devices of the mesh that share them).

    A GPU has its own; virtual CPU devices share the machine's memory.
    """
    local = [device for device in step.mesh.devices.flat if device.process_index == jax.process_index()]
    statistics = local[0].memory_stats()
    if statistics and "bytes_limit" in statistics:
        return statistics["bytes_limit"], 1
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), len(local)


def check_state_fits(step: TrainStep) -> None:
    """Raises `UserError` when weights and moments alone are more than the memory there is."""
    limit, sharing = memory_limit(step)
    needed = state_bytes(step) * sharing
    if needed > limit:
        where = "each device" if sharing == 1 else f"this machine's {sharing} devices"
        raise UserError(
            f"parallel: weights and optimizer state take {mebibytes(needed)} on {where}, and there are "
            f"{mebibytes(limit)}; shard over more devices (parallel.fsdp with parallel.zero: 3), or choose a smaller "
            "model"
        )


def check_step_fits(step: TrainStep, needed: int | None) -> None:
    """Raises `UserError` when the compiled step needs `needed` bytes per device, and a GPU has less."""
    limit, sharing = memory_limit(step)
    if needed is not None and sharing == 1 and needed > limit:
        raise UserError(
            f"parallel: the step needs {mebibytes(needed)} per device, and there are {mebibytes(limit)}; {ADVICE}"
        )
