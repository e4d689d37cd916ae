"""A GPU of the catalogue in place of a `jax.Device`, for plans that are made where the GPU is not."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.hardware.catalogue import GPU


@dataclass(frozen=True)
class DescribedGPU:
    """The fields of a `jax.Device` that a choice of kernels reads."""

    device_kind: str
    compute_capability: str
    core_count: int
    platform: str = "gpu"

    @classmethod
    def from_gpu(cls, gpu: GPU) -> DescribedGPU:
        """A device like `gpu`, with the first of its names."""
        return cls(gpu.device_kinds[0], "{}.{}".format(*gpu.compute_capability), gpu.multiprocessors)
