"""The XLA flags of programs for GPUs, both in the trainer and when compiling without a GPU.

An unknown flag makes XLA end the process, so flags are checked against the installed XLA first.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted
from jaxpar.hardware.autotuned import with_triton
from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.sources import derived

ESTIMATOR = "xla_gpu_analytical_latency_estimator_options"
OVERLAP_LIMIT = "xla_gpu_experimental_parallel_collective_overlap_limit"
"""Collectives that XLA may have in flight at a time; 1 unless a flag allows more."""
GATHERS = "xla_gpu_all_gather_combine_threshold_bytes"
SCATTERS = "xla_gpu_reduce_scatter_combine_threshold_bytes"
MERGED = "xla_gpu_dot_merger_threshold_mb"
MEMORY_PERCENT = "xla_gpu_memory_limit_slop_factor"
"""The percentage of a device's memory that XLA counts with."""
COMMON = (
    # Collectives start early and end late, with independent work between. Off by default.
    "--xla_gpu_enable_latency_hiding_scheduler=true",
    # Every matmul is a call of cuBLAS. What Triton would fuse is decided by timing kernels, so the program compiled
    # without a GPU would not be the one that runs, unless a file has what was timed (`hardware.autotuned`).
    "--xla_gpu_enable_triton_gemm=false",
)
"""Flags for every GPU. docs/decisions.md lists others that were tried."""
SLOW_NETWORK: Annotated[float, derived("docs/overlap.md: steps compiled with both")] = 25e9
"""Bytes per second of a GPU's network card, below which XLA's own assumption made messages leave too late
(docs/overlap.md); with 50 GB/s a step became no faster."""


def xla_flags(gpu: GPU | None = None) -> tuple[str, ...]:
    """The flags for programs that run on `gpu`; None means a GPU that is not in the catalogue.

    Where hosts of Hopper and Blackwell GPUs have a slow network, XLA's latency estimator gets its speed, so that
    messages leave early enough. Older GPUs have no estimator that would take it.
    """
    if gpu is None or gpu.compute_capability < (9, 0) or gpu.network.bandwidth >= SLOW_NETWORK:
        return COMMON
    return *COMMON, f"--{ESTIMATOR}=nic_speed_gbps={gpu.network.bandwidth / 1e9:g}"


def flag_name(flag: str) -> str:
    """`--xla_x=1` is about `xla_x`."""
    return flag.lstrip("-").split("=")[0]


def collectives_at_a_time(flags: Sequence[str], planned: int = 1) -> int:
    """Collectives that programs compiled with `flags` may have in flight at a time; `planned` where none states it."""
    limits = [flag.partition("=")[2] for flag in flags if flag_name(flag) == OVERLAP_LIMIT]
    return int(limits[-1]) if limits else planned


def merged(defaults: tuple[str, ...], theirs: str) -> str:
    """`XLA_FLAGS` from `defaults` and `theirs`, the user's flags, which take precedence. If these read or write a file
    of tiles, matmuls use Triton (`hardware.autotuned`)."""
    written = theirs.split()
    known = {flag_name(flag) for flag in written}
    return " ".join([*(flag for flag in with_triton(defaults, written) if flag_name(flag) not in known), *written])


def run_flags(gpu: GPU | None = None) -> tuple[str, ...]:
    """The flags of a run on `gpu` that is started in this environment: those of `XLA_FLAGS` about GPUs count more."""
    theirs = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag_name(flag).startswith("xla_gpu_")]
    return tuple(merged(xla_flags(gpu), " ".join(theirs)).split())


def options() -> str:
    """The options that this process compiles with, to compare with those of `check_flags`.

    XLA reads `XLA_FLAGS` once, when a process first looks at its devices, compiles or calls this.
    """
    from jaxlib import xla_client

    return xla_client.CompileOptions().SerializeAsString().hex()


@cache
def check_flags(flags: str) -> str:
    """Ask the installed XLA whether it knows `flags`, text as in `XLA_FLAGS`. Takes a third of a second in a child.

    Returns:
        The `options` of a process with these flags.

    Raises:
        UserError: it does not know a flag, or not the value of one.
    """
    asked = subprocess.run(
        [sys.executable, "-c", "from jaxlib import _jax; print(_jax.CompileOptions().SerializeAsString().hex())"],
        env=os.environ | {"XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode == 0:
        return asked.stdout.strip()
    unknown = re.search(r"Unknown flags? in XLA_FLAGS: (.*)", asked.stderr)
    if unknown is not None:
        raise UserError(f"XLA_FLAGS: the installed XLA does not know {', '.join(unknown[1].split())}")
    words = re.search(r"Couldn't interpret value .*|Could not open file .*", asked.stderr)
    why = words[0].strip() if words else "a value is not one of those it has"
    raise UserError(f"XLA_FLAGS: the installed XLA does not take {quoted(flags)} ({why})")
