"""The device that a program is traced for: the one at hand, or the abstract one of `jax.sharding.use_abstract_mesh`."""

from __future__ import annotations

from typing import NamedTuple

import jax

from pallas_kernels.pallas import triton as plgpu


class Target(NamedTuple):
    """A kind of device."""

    platform: str
    compute_capability: float | None = None
    gpu: str = ""
    """`jax.Device.device_kind`, such as `NVIDIA H200`: a part of a GPU (MIG) has a name of its own."""
    processors: int | None = None
    """Streaming multiprocessors: 132 of an H100 SXM, 114 of an H100 PCIe, 78 of an H20, fewer of a MIG slice."""


INTERPRETER = Target("interpreter")
"""Pallas' interpreter."""


def target() -> Target:
    """The target of the current trace. Other platforms than NVIDIA GPUs have no compute capability."""
    if not plgpu.is_gpu_device():
        return Target("cpu")
    capability = plgpu.get_gpu_info().compute_capability
    described = jax.sharding.get_abstract_mesh().abstract_device
    name = jax.local_devices()[0].device_kind if described is None else described.device_kind
    return Target("gpu", capability / 10 if capability else None, name, multiprocessors())


def multiprocessors() -> int:
    """Streaming multiprocessors of the GPU that is traced for.

    Raises:
        ValueError: The GPU does not report them.
    """
    described = jax.sharding.get_abstract_mesh().abstract_device
    cores = jax.local_devices()[0].core_count if described is None else described.num_cores
    if not cores:
        raise ValueError("a persistent kernel needs the number of multiprocessors, and the device does not report it")
    return cores
