"""The installed GPU compiler of XLA: the wheels of the extra `compile`, and their versions."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path

import jaxpar
import pallas_kernels
from jaxpar.config.errors import UserError
from jaxpar.config.install import install_command

INSTALL = install_command("compile")
CUDA_RELEASES = ("12", "13")
"""CUDA releases with a JAX plugin; the first that is installed is used."""


def cuda_release() -> str:
    """The CUDA release of the installed plugin, which has jax's version.

    Raises:
        UserError: the wheels are missing, or belong to another version of jax.
    """
    for release in CUDA_RELEASES:
        names = f"jax-cuda{release}-plugin", f"jax-cuda{release}-pjrt"
        installed = {name: _version(name) for name in names}
        if None in installed.values():
            continue
        other = {f"{name} {found}" for name, found in installed.items() if found != version("jaxlib")}
        if other:
            raise UserError(
                f"XLA's GPU compiler must have the version of jaxlib, {version('jaxlib')}, and there is "
                f"{', '.join(sorted(other))}: {INSTALL}"
            )
        if _version(_ptxas(release)) is None:
            raise UserError(f"compiling for GPUs needs ptxas, from {_ptxas(release)}, which is missing: {INSTALL}")
        return release
    raise UserError(f"compiling for GPUs needs XLA's GPU compiler, which is not installed: {INSTALL}")


def has_cudnn(release: str) -> bool:
    """Whether cuDNN's wheel is there; without it a program with cuDNN's attention cannot be compiled."""
    return _version(f"nvidia-cudnn-cu{release}") is not None


def toolkit(release: str) -> Path | None:
    """The folder of the installed part of the CUDA toolkit, in which ptxas is `bin/ptxas`; None where its package does
    not list its files."""
    found = (Path(str(file.locate())) for file in files(_ptxas(release)) or () if file.match("bin/ptxas"))
    ptxas = next((file for file in found if file.exists()), None)
    return None if ptxas is None else ptxas.absolute().parents[1]


def versions(release: str) -> dict[str, str]:
    """Everything that can change what the compiler makes: versions by name, and the digest of jaxpar's source."""
    names = ("jax", "jaxlib", f"jax-cuda{release}-plugin", f"jax-cuda{release}-pjrt", _ptxas(release))
    found = {name: version(name) for name in names}
    cudnn = _version(f"nvidia-cudnn-cu{release}")
    return found | ({f"nvidia-cudnn-cu{release}": cudnn} if cudnn else {}) | {"jaxpar": source_digest()}


@cache
def source_digest() -> str:
    """A digest of every module of jaxpar and of the kernels."""
    digest = hashlib.sha256()
    for package in (jaxpar, pallas_kernels):
        root = Path(str(package.__file__)).parent
        for file in sorted(root.rglob("*.py")):
            digest.update(f"{root.name}/{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _ptxas(release: str) -> str:
    return "nvidia-cuda-nvcc-cu12" if release == "12" else "nvidia-cuda-nvcc"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
