"""The device that a program is traced for: the one at hand, or the abstract one of `jax.sharding.use_abstract_mesh`."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax.experimental.pallas import triton as plgpu


class Target(NamedTuple):
    """A kind of device."""

    platform: str
    compute_capability: float | None


def target() -> Target:
    """What is traced for. Outside NVIDIA GPUs there is no compute capability."""
    if not plgpu.is_gpu_device():
        return Target("cpu", None)
    capability = plgpu.get_gpu_info().compute_capability
    return Target("gpu", capability / 10 if capability else None)


def multiprocessors() -> int:
    """Streaming multiprocessors of the GPU that is traced for: 132 of an H100 SXM, 78 of an H20.

    Where a kernel is traced without any GPU, it is for an H100.
    """
    described = jax.sharding.get_abstract_mesh().abstract_device
    cores = jax.local_devices()[0].core_count if described is None else described.num_cores
    return cores or 132
