"""Files with the tiles of Triton's matmuls that XLA timed on a GPU.

A run on GPUs writes one with `XLA_FLAGS=--xla_gpu_dump_autotune_results_to=FILE.txt`, and takes what is in it with
`XLA_FLAGS=--xla_gpu_load_autotune_results_from=FILE.txt`, as does `jaxpar.inspect` without a GPU. Both have Triton's
matmuls. XLA finds a fusion by its text, with its shapes, and by its GPU, so a file is of one program
(docs/network.md).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.hardware.catalogue import GPU

LOAD = "xla_gpu_load_autotune_results_from"
DUMP = "xla_gpu_dump_autotune_results_to"
TRITON_GEMM = "xla_gpu_enable_triton_gemm"
FORMAT = "xla_gpu_use_new_autotune_cache_format"
"""Off, files are in the older of XLA's formats, which has the text of each fusion and the name of its GPU. XLA's newer
cache does not look into a file of the older format."""
COMPLETE = "--xla_gpu_require_complete_aot_autotune_results=true"
"""XLA refuses a fusion that the file lacks. Without a GPU it would take the smallest tiles there are."""
LACKING = "No cached config found for HLO"
"""Text of XLA's error if the file lacks a tile."""


def file_of(flags: Sequence[str], name: str = LOAD) -> Path | None:
    """The file of results that `flags` name for XLA to load, or for `DUMP`; the last one counts."""
    values = [value for key, _, value in (flag.lstrip("-").partition("=") for flag in flags) if key == name]
    return Path(values[-1]) if values else None


def with_triton(defaults: tuple[str, ...], theirs: Sequence[str]) -> tuple[str, ...]:
    """Our `defaults` flags, with Triton's matmuls if those of the user read or write a file."""
    if file_of(defaults, TRITON_GEMM) is None or not (file_of(theirs) or file_of(theirs, DUMP)):
        return defaults
    rest = (flag for flag in defaults if file_of((flag,), TRITON_GEMM) is None)
    return *rest, f"--{TRITON_GEMM}=true", f"--{FORMAT}=false"


def check_file(file: Path, gpu: GPU | None) -> str:
    """The text of a file for programs of `gpu`; None is a GPU that is not in the catalogue.

    Raises:
        UserError: it cannot be read, has no results, or those of another GPU.
    """
    where, expected = f"XLA_FLAGS: --{LOAD}={file}", f"expected a file that a run with --{DUMP}=FILE.txt wrote"
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "it is not text"
        raise UserError(f"{where} cannot be read ({why}); {expected}") from None
    devices = {*re.findall(r'^\s*device: "(.*)"$', text, re.MULTILINE)}
    if not devices:
        raise UserError(f"{where} has no results of a GPU; {expected}")
    if gpu is not None:
        fingerprint = f"CUDA: {'.'.join(map(str, gpu.compute_capability))}, Cores: {gpu.multiprocessors}, "
        other = sorted(device for device in devices if not device.startswith(fingerprint))
        if other:
            raise UserError(
                f"{where} is of another GPU ({other[0]}) than {gpu.name} ({fingerprint}...); {expected} there"
            )
    return text
