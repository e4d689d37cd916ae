"""The versions that decide what machine code a kernel becomes, and those known to compile kernels wrongly."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax

MISCOMPILED = {"ptxas": ("12.8", "12.9.86"), "cuda": ("12.8", "12.9.79")}
"""Versions of CUDA 12.8.0 and 12.9.1, by tool: the ptxas from the first to before the second miscompiles causal Mosaic
kernels on Hopper. JAX's own attention kernel (`jax.experimental.pallas.ops.gpu.attention_mgpu`) refuses the same."""

SYSTEM_CUDA = Path("/usr/local/cuda")
OLDEST_PTXAS = "11.8"
_RUNTIMES = "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"


@cache
def versions() -> Mapping[str, str]:
    """Versions of jax, the CUDA runtime and ptxas, as far as they are installed.

    They are found without touching a device, so that a plan can be made before there is one.
    """
    versions_of = {"jax": jax.__version__, "cuda": _cuda_runtime(), **_ptxas()}
    return {name: version for name, version in versions_of.items() if version is not None}


def miscompiles_causal(installed: Mapping[str, str] | None = None) -> str | None:
    """Why causal Mosaic kernels must not be compiled by these versions (those at hand by default); None if they may.

    Where ptxas is not found, the CUDA runtime's version stands for it: both come with one release.
    """
    installed = versions() if installed is None else installed
    part = next((part for part in MISCOMPILED if part in installed), None)
    if part is None:
        return None
    first, good = MISCOMPILED[part]
    if not _version_tuple(first) <= _version_tuple(installed[part]) < _version_tuple(good):
        return None
    what = "ptxas" if part == "ptxas" else "ptxas is not found, and that of the CUDA runtime"
    return (
        f"{what} {installed[part]} compiles causal kernels wrongly, like every one from CUDA 12.8 to before 12.9.1; "
        f"install CUDA 12.9.1 or later (pip install 'nvidia-cuda-nvcc-cu12>={MISCOMPILED['ptxas'][1]}'); where "
        f"another is on PATH or in {SYSTEM_CUDA}, which Mosaic prefers, put the folder of a good one first on PATH"
    )


def _cuda_runtime() -> str | None:
    """The version of the CUDA runtime's package; None where CUDA is not installed as one."""
    for name in _RUNTIMES:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _ptxas() -> Mapping[str, str | None]:
    """Versions of the ptxas that Mosaic uses, and of XLA's for other kernels where it is another.

    XLA takes that of JAX's CUDA folder, which is a package. Mosaic prefers those on PATH, then that of /usr/local/cuda.
    Both pass over versions before OLDEST_PTXAS.
    """
    import jax.experimental.pallas.mosaic_gpu  # noqa: F401  # names the CUDA folder that JAX found in this variable

    package = str(Path(os.environ.get("MOSAIC_GPU_CUDA_ROOT", "")) / "bin")
    folders = *os.environ.get("PATH", "").split(os.pathsep), str(SYSTEM_CUDA / "bin"), package
    versions_in = {folder: _usable_version(shutil.which("ptxas", path=folder)) for folder in folders}
    mosaic = next(filter(None, versions_in.values()), None)
    xla = versions_in[package]
    return {"ptxas": mosaic} | ({} if xla in (None, mosaic) else {"xla_ptxas": xla})


def _usable_version(program: str | None) -> str | None:
    """Version that `program` prints; None where there is no program, or one that XLA passes over."""
    if program is None:
        return None
    printed = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"\bV(\d+\.\d+\.\d+)", printed)
    return None if match is None or _version_tuple(match[1]) < _version_tuple(OLDEST_PTXAS) else match[1]


def _version_tuple(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
