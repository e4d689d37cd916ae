"""Checks versions: Python, the packages against their ranges, and JAX's plugin for CUDA."""

from __future__ import annotations

import platform
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import jaxpar
from jaxpar.checkup.finding import Finding
from jaxpar.config.install import install_command
from pallas_kernels import toolchain

CUDA_RELEASES = ("12", "13")
LEAST_CUBLAS = Version("13.2")
"""The least version of cuBLAS without a known error (marin-community/marin#5428)."""
SHOWN = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def check_software(gpu: bool) -> Iterator[Finding]:
    """Findings about the installation; `gpu`: whether this machine has an NVIDIA driver."""
    wanted_python, wanted = requirements()
    yield _python(wanted_python)
    yield from _packages(wanted)
    yield from _plugin(gpu)
    yield from _cublas()
    yield from _ptxas()


def requirements() -> tuple[SpecifierSet, list[Requirement]]:
    """(versions of Python, packages with their ranges), from pyproject.toml in a clone, else from what is installed."""
    file = Path(str(jaxpar.__file__)).parents[1] / "pyproject.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text())["project"]
        return SpecifierSet(project["requires-python"]), [Requirement(text) for text in project["dependencies"]]
    needed = [Requirement(text) for text in requires("jaxpar") or []]
    return SpecifierSet(metadata("jaxpar")["Requires-Python"] or ""), [
        each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})
    ]


def _python(wanted: SpecifierSet) -> Finding:
    version = platform.python_version()
    if version in wanted:
        return Finding("python", "ok", f"{version} ({platform.machine()}, {platform.system()})")
    return Finding(
        "python", "fail", f"{version}, and jaxpar needs {wanted}", "create the environment with another Python"
    )


def _packages(wanted: list[Requirement]) -> Iterator[Finding]:
    wrong = False
    for requirement in wanted:
        version = installed(requirement.name)
        if version is not None and requirement.specifier.contains(version, prereleases=True):
            continue
        wrong = True
        what = "missing" if version is None else version
        yield Finding(
            "packages",
            "fail",
            f"{requirement.name} is {what}, and jaxpar needs {requirement.specifier}",
            f"pip install -c constraints.txt '{requirement.name}{requirement.specifier}'",
        )
    if not wrong:
        shown = ", ".join(f"{name} {version}" for name in SHOWN if (version := installed(name)) is not None)
        yield Finding("packages", "ok", f"{shown}; all {len(wanted)} in their ranges")


def _plugin(gpu: bool) -> Iterator[Finding]:
    lib = installed("jaxlib")
    plugins = {
        name: version for release in CUDA_RELEASES if (version := installed(name := f"jax-cuda{release}-plugin"))
    }
    if not plugins:
        if gpu:
            yield Finding(
                "plugin", "fail", "there is an NVIDIA driver, and JAX has no plugin for CUDA",
                f"make setup, or {install_command('cuda12')}",
            )  # fmt: skip
        return
    for name, version in plugins.items():
        if version == lib:
            yield Finding("plugin", "ok", f"{name} {version}" + ("" if gpu else ", but no NVIDIA driver"))
        else:
            yield Finding("plugin", "fail", f"{name} {version} beside jaxlib {lib}", f"pip install '{name}=={lib}'")


def _cublas() -> Iterator[Finding]:
    """Packages of PyTorch for CUDA 13.0 pin an older cuBLAS than Blackwell needs."""
    version = installed("nvidia-cublas")
    if version is not None and Version(version) < LEAST_CUBLAS:
        wanted = f"pip install 'nvidia-cublas>={LEAST_CUBLAS}'"
        yield Finding("cuBLAS", "warn", f"{version}, and Blackwell needs {LEAST_CUBLAS}", wanted)


def _ptxas() -> Iterator[Finding]:
    """The assembler that makes the machine code of kernels; nothing where there is none."""
    versions = toolchain.versions()
    if not versions.keys() & toolchain.MISCOMPILED.keys():
        return
    reason = toolchain.miscompiles_causal(versions)
    if reason is None:
        yield Finding("ptxas", "ok", versions.get("ptxas", f"not found, of CUDA {versions.get('cuda')}"))
    else:
        yield Finding("ptxas", "warn", reason, "install it; until then the Mosaic attention kernels are refused")


def cuda_release() -> int | None:
    """The CUDA release of the plugin that is installed."""
    for release in CUDA_RELEASES:
        if installed(f"jax-cuda{release}-plugin") is not None:
            return int(release)
    return None


def installed(name: str) -> str | None:
    """The version of a package; None without it."""
    try:
        return re.sub(r"\+.*", "", version(name))
    except PackageNotFoundError:
        return None
