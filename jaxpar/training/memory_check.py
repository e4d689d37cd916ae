"""What a step needs, what there is, and sizes for people."""

from __future__ import annotations

import os
from math import prod

import jax

from jaxpar.memory.streaming import PINNED
from jaxpar.training.step import TrainStep


def state_bytes(step: TrainStep) -> int:
    """Bytes of one device's master weights and moments, wherever they rest."""
    return _bytes_of(jax.tree.leaves(step.abstract_state()))


def pinned_state_bytes(step: TrainStep) -> int:
    """Those of them that rest in pinned memory of the host."""
    leaves = jax.tree.leaves(step.abstract_state())
    return _bytes_of([leaf for leaf in leaves if leaf.sharding.memory_kind == PINNED])


def _bytes_of(leaves: list[jax.ShapeDtypeStruct]) -> int:
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
