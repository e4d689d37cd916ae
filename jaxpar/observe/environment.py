"""`environment.json`: the machine and the programs that a run was started with."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax

from jaxpar import __version__
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.strict_json import json_text
from jaxpar.distributed.devices import devices_per_node
from jaxpar.hardware.host import host_memory
from jaxpar.observe.events import Listener, RunInfo
from jaxpar.observe.files import write_atomically

ENVIRONMENT_FILE = "environment.json"

PACKAGES = (
    "jax",
    "jaxlib",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "numpy",
)
"""Packages whose version can change a run's numbers or speed."""

VARIABLES = ("JAX_", "XLA_", "NCCL_", "CUDA_VISIBLE_DEVICES", "TF_GPU_ALLOCATOR")
"""Prefixes of the environment variables that can."""

GIT_PATIENCE_S = 5.0
"""Time limit for git: `git status` of a large tree on a slow disk must not hold up a run."""


class EnvironmentFile(Listener):
    """Writes `environment.json` when a run starts. One of an earlier start that differs is kept under a name with the
    last step of that start."""

    def start(self, info: RunInfo) -> None:
        file = Path(info.folder) / ENVIRONMENT_FILE
        text = json_text(environment(), indent=2) + "\n"
        if file.exists() and (old := read_file(file)) != text.encode():
            renamed = file.with_name(f"{file.stem}-until-{info.first_step - 1}{file.suffix}")
            if not renamed.exists():
                write_atomically(renamed, old)
        write_atomically(file, text.encode())


def environment() -> dict[str, object]:
    """Versions, devices, the command and what it was run in, as JSON values. Asks JAX for its devices."""
    devices = jax.devices()
    return {
        "command": shlex.join(sys.orig_argv),
        "folder": os.getcwd(),
        "git": git_state(Path.cwd()),
        "jaxpar": __version__,
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "devices": {
            "kind": devices[0].device_kind,
            "platform": devices[0].platform,
            "count": len(devices),
            "per_host": devices_per_node(devices),
            "processes": jax.process_count(),
            "runtime": devices[0].client.platform_version.strip(),
        },
        "host": {
            "name": socket.gethostname(),
            "system": platform.platform(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_bytes": host_memory(),
        },
        "variables": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(VARIABLES)},
    }


def git_state(folder: Path) -> dict[str, object] | None:
    """The commit of `folder` and whether its files differ from it; None where there is no commit or no git.

    `changed` is None where git took too long.
    """
    if shutil.which("git") is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if status is None else bool(status)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
