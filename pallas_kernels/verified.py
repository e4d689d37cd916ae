"""Which kernels have been right on a device: the records in `verified.json`.

A kernel that was only compiled and interpreted is never chosen by `auto`. `python -m benchmarks.gpu --record` compares
kernels with a float64 reference on the GPU that it finds and adds what passed. A record holds for GPUs of the same
compute capability, for the sources that were run, and for the same minor version of jax, which compiles them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import jax

ROOT = Path(__file__).parent
FILE = ROOT / "verified.json"

_ATTENTION = ("attention/derivative.py", "attention/settings.py", "masks.py", "varying.py")
SOURCES = {
    "attention/mosaic": ("attention/mosaic", *_ATTENTION),
    "attention/mosaic_deterministic": ("attention/mosaic", *_ATTENTION),
    "attention/triton": ("attention/triton", "attention/blocks.py", *_ATTENTION),
    "linear_cross_entropy/triton": ("linear_cross_entropy", "varying.py"),
}
"""By kernel, the folders and files that say what it computes."""


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
    sources: str
    """`digest` of what was run."""


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
            f"{file} is not a list of records of kernel, device, compute_capability, date, versions, sources"
        ) from error


@cache
def digest(kernel: str, root: Path = ROOT) -> str:
    """Of the names and the text of the kernel's sources, 16 hexadecimal digits."""
    parts = [root / name for name in SOURCES[kernel]]
    files = [file for part in parts for file in (sorted(part.rglob("*.py")) if part.is_dir() else (part,))]
    found = sha256()
    for file in files:
        text = file.read_bytes()
        found.update(f"{file.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return found.hexdigest()[:16]


def record_of(kernel: str, compute_capability: float | None) -> Record | None:
    """The last record of `kernel`, as it is now, on a GPU of this compute capability and by this minor version of jax;
    None where there is none."""
    if compute_capability is None:
        return None
    wanted = kernel, f"{compute_capability:.1f}", digest(kernel), _minor(jax.__version__)
    found = [
        one
        for one in records()
        if (one.kernel, one.compute_capability, one.sources, _minor(dict(one.versions).get("jax", ""))) == wanted
    ]
    return found[-1] if found else None


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
