"""The share of a GPU's memory that a program may use, for the trainer and for predictions without a GPU."""

from __future__ import annotations

from typing import Annotated

from jaxpar.hardware.sources import chosen

POOL_FRACTION: Annotated[float, chosen("what the trainer sets")] = 0.95
"""Share of the device that XLA's allocator takes in training. The rest is for the CUDA context, NCCL's channels and
workspaces of libraries; JAX's own default leaves them 25%."""

POOL_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""Variables from which JAX reads the share: the current name and the older one. JAX refuses both at once."""


def pool_bytes(device_bytes: int) -> int:
    """Bytes that a program may take of a device of `device_bytes`."""
    return int(device_bytes * POOL_FRACTION)
