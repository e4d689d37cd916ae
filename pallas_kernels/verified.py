"""Which kernels have been right on a device: the records in `verified.json`.

A kernel that was only compiled and interpreted is never chosen by `auto`. `python -m benchmarks.gpu --record` compares
kernels with a float64 reference on the GPU that it finds and adds what passed. A record holds for GPUs of the same
compute capability.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("verified.json")


@dataclass(frozen=True)
class Record:
    """A kernel that was compared with its reference on a device."""

    kernel: str
    """Such as `attention/triton`."""
    device: str
    """Such as `NVIDIA H200`."""
    compute_capability: str
    """Such as `9.0`."""
    date: str
    versions: tuple[tuple[str, str], ...]
    """Package and version, of jax at least."""


@cache
def records(file: Path = FILE) -> tuple[Record, ...]:
    """The records of `verified.json`. Raises `ValueError` where it is not a list of such records."""
    try:
        return tuple(
            Record(**{**entry, "versions": tuple(sorted(entry["versions"].items()))})
            for entry in json.loads(file.read_text())
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{file} is not a list of records of kernel, device, compute_capability, date, versions"
        ) from error


def record_of(kernel: str, compute_capability: float | None) -> Record | None:
    """The last record of `kernel` on a GPU of this compute capability; None where there is none."""
    if compute_capability is None:
        return None
    capability = f"{compute_capability:.1f}"
    found = [one for one in records() if (one.kernel, one.compute_capability) == (kernel, capability)]
    return found[-1] if found else None
