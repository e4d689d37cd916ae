"""Records of the kernels that were verified on a device, in `verified.json`.

A kernel that was only compiled and interpreted is never chosen by `auto`. `python -m benchmarks.gpu --record` compares
kernels with a float64 reference on the GPU that it finds and adds what passed. A record holds for the sources that
were run, the versions that compiled them (jax, CUDA, ptxas), and GPUs of the same name with as many multiprocessors,
which decide how a persistent kernel shares its tiles out.

There are two files: the one that ships with this package, and the user's own, to which a run on a GPU adds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from pallas_kernels.toolchain import versions

ROOT = Path(__file__).parent
FILE = ROOT / "verified.json"

_ATTENTION = (
    "attention/derivative.py", "attention/intervals.py", "attention/settings.py", "device.py",
    "pallas.py", "masks.py", "varying.py", "vjp_parts.py",
)  # fmt: skip
_PERSISTENT = (
    *(f"attention/mosaic/{name}.py" for name in ("bounds", "memory", "registers", "schedule")),
    "attention/intervals.py", "attention/settings.py", "device.py", "pallas.py", "masks.py", "varying.py",
)  # fmt: skip
"""Sources that the other kernels for Hopper share with attention's."""
_TILED = "tiled_matmul", "grouped_matmul/mosaic", "grouped_matmul/blocks.py", *_PERSISTENT
# fmt: off
SOURCES = {
    "attention/mosaic": ("attention/mosaic", *_ATTENTION),
    "attention/mosaic_deterministic": ("attention/mosaic", *_ATTENTION),
    "attention/cudnn": (
        "attention/cudnn.py", "attention/cudnn_packed.py", "attention/packed_room.py", "attention/derivative.py",
        "attention/settings.py", "masks.py", "varying.py", "vjp_parts.py",
    ),
    "attention/triton": ("attention/triton", "attention/blocks.py", *_ATTENTION),
    "grouped_matmul/mosaic": ("grouped_matmul/mosaic", "grouped_matmul/blocks.py", *_PERSISTENT),
    "grouped_matmul/triton": (
        "grouped_matmul/triton.py", "grouped_matmul/blocks.py", "device.py", "pallas.py", "varying.py",
    ),
    "tiled_matmul/mosaic": _TILED,
    "grouped_tiled_matmul/mosaic": _TILED,
    "linear_attention/mosaic": ("linear_attention", "attention/mosaic/matmuls.py", "vjp_parts.py", *_PERSISTENT),
}
# fmt: on
"""Folders and files that decide what a kernel computes, by kernel, its main source first. cuDNN is chosen without a
record; its record holds a speed."""


OF_XLA = "of xla"
"""The name of a speed as a share of plain XLA's."""


@dataclass(frozen=True)
class Record:
    """A kernel that was compared with its reference on a device."""

    kernel: str
    """Name, such as `attention/triton`."""
    device: str
    """`jax.Device.device_kind`, such as `NVIDIA H200`."""
    processors: int
    """Number of streaming multiprocessors."""
    date: str
    versions: tuple[tuple[str, str], ...]
    """jax, CUDA and ptxas: see `toolchain.versions`."""
    sources: str
    """`digest` of what was run."""
    speeds: tuple[tuple[str, float], ...] = ()
    """TFLOP/s of attention's forward and backward together, by kind of mask and width of heads (`causal 128`). Other
    kernels have `OF_XLA` alone."""


def user_file() -> Path:
    """The records that were made on this machine, in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxpar" / "verified.json"


@cache
def records() -> tuple[Record, ...]:
    """Records that ship with the package, then those of the user's file."""
    return tuple(record for file in (FILE, user_file()) for record in read_records(file))


def read_records(file: Path) -> tuple[Record, ...]:
    """The records in a file; none where there is no file. Raises `ValueError` where it is not a list of records."""
    if not file.exists():
        return ()
    try:
        return tuple(
            Record(**{**entry, **{name: tuple(sorted(entry.get(name, {}).items())) for name in ("versions", "speeds")}})
            for entry in json.loads(file.read_text())
        )
    except (TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{file} is not a list of records of kernel, device, processors, date, versions, sources; delete it and "
            "run python -m benchmarks.gpu --record"
        ) from error


def files(names: Sequence[str], root: Path = ROOT) -> list[Path]:
    """The files of sources: those of a folder in the order of their names."""
    parts = [root / name for name in names]
    return [file for part in parts for file in (sorted(part.rglob("*.py")) if part.is_dir() else (part,))]


@cache
def digest(kernel: str, root: Path = ROOT) -> str:
    """Digest of the names and text of the kernel's sources, 16 hexadecimal digits."""
    hasher = sha256()
    for file in files(SOURCES[kernel], root):
        text = file.read_bytes()
        hasher.update(f"{file.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return hasher.hexdigest()[:16]


def record_of(kernel: str, gpu: str, processors: int | None) -> Record | None:
    """The last record of the current `kernel` on GPUs of this name and number of multiprocessors, or None.

    A version that is not installed here (a plan can be made on a machine without CUDA) is not compared.
    """
    alike = [one for one in records() if (one.kernel, one.device, one.processors) == (kernel, gpu, processors)]
    if not alike:  # to ask for the versions imports the compiler of a GPU's kernels and runs ptxas
        return None
    sources, here = digest(kernel), versions().items()
    matching = [one for one in alike if one.sources == sources and here <= dict(one.versions).items()]
    return matching[-1] if matching else None
