"""The installed GPU compiler of XLA: the wheels of the extra `compile`, and their versions."""

from __future__ import annotations

import hashlib
import os
import shlex
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

_STUB = """#!/bin/sh
# Writes empty machine code; XLA chooses by the version of the real one.
if [ "$1" = --version ]; then exec {ptxas} --version; fi
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then : > "$2"; fi
    shift
done
"""
"""A ptxas that assembles nothing."""


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
        other = {
            f"{name} {installed_version}"
            for name, installed_version in installed.items()
            if installed_version != version("jaxlib")
        }
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
    programs = (Path(str(file.locate())) for file in files(_ptxas(release)) or () if file.match("bin/ptxas"))
    ptxas = next((file for file in programs if file.exists()), None)
    return None if ptxas is None else ptxas.absolute().parents[1]


def options_without_machine_code(toolkit: Path | None, folder: Path) -> dict[str, str | int]:
    """Compiler options that skip machine code, which is half of the time of a compile and is not read.

    XLA optimizes every kernel with LLVM and assembles it with ptxas, in a process per kernel, after the program, its
    memory and its schedule are final. `folder`, which is created, stands in for the CUDA `toolkit`; its ptxas returns
    at once. Empty where no toolkit is found, or programs in `folder` may not be executed.
    """
    if toolkit is None:
        return {}
    (folder / "bin").mkdir(parents=True)
    for part in toolkit.iterdir():
        if part.name != "bin":
            (folder / part.name).symlink_to(part)
    for program in (toolkit / "bin").iterdir():
        if program.name != "ptxas":
            (folder / "bin" / program.name).symlink_to(program)
    stub = folder / "bin" / "ptxas"
    stub.write_text(_STUB.format(ptxas=shlex.quote(str(toolkit / "bin" / "ptxas"))))
    stub.chmod(0o755)
    if not os.access(stub, os.X_OK):
        return {}
    return {"xla_backend_optimization_level": 0, "xla_gpu_cuda_data_dir": str(folder)}


def versions(release: str) -> dict[str, str]:
    """Everything that can change what the compiler makes: versions by name, and the digest of jaxpar's source."""
    names = ("jax", "jaxlib", f"jax-cuda{release}-plugin", f"jax-cuda{release}-pjrt", _ptxas(release))
    installed = {name: version(name) for name in names}
    cudnn = _version(f"nvidia-cudnn-cu{release}")
    return installed | ({f"nvidia-cudnn-cu{release}": cudnn} if cudnn else {}) | {"jaxpar": source_digest()}


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
