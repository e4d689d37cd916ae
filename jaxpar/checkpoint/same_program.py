"""Programs of a job's processes, which must be one: each process compiles its own, and hosts differ."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Hashable
from hashlib import sha256
from typing import Any

import jax
import numpy as np
from jax.stages import Wrapped

from jaxpar.checkpoint.processes import run_on_process_0
from jaxpar.config.errors import UserError

_SOURCES = "jax_hlo_source_file_canonicalization_regex"
"""JAX's setting of what is left out of the names of source files."""
_OF_A_HOST = ("dump", "autotune", "cuda_data_dir")
"""Words in the names of XLA's flags that may differ between hosts, such as folders for files."""


def name_sources_alike() -> None:
    """Have programs name source files by module and not by folder, so that hosts may have their packages elsewhere.

    Pallas kernels contain these names, also in the text of a program without its locations.
    """
    folders = sorted({os.path.abspath(folder) for folder in sys.path}, key=len, reverse=True)
    jax.config.update(_SOURCES, f"^(?:{'|'.join(map(re.escape, folders))})/")


def compared_flags(flags: str) -> str:
    """The flags of XLA that all hosts must have alike, sorted. The last value of a flag is the one that XLA takes."""
    last = {flag.partition("=")[0]: flag for flag in flags.split()}
    return " ".join(sorted(flag for name, flag in last.items() if not any(word in name for word in _OF_A_HOST)))


def check_program(lowered: jax.stages.Lowered, what: str) -> None:
    """Compare a program with that of process 0, before it is compiled. All processes call this.

    Process 0 sends one message, and each other process receives it.

    Args:
        lowered: the program.
        what: it computes, for messages.

    Raises:
        UserError: they differ; the watch reports it to the other processes.
    """
    if jax.process_count() == 1:
        return
    mine = {
        "host": socket.gethostname(),
        "jax": jax.__version__,
        "XLA_FLAGS": compared_flags(os.environ.get("XLA_FLAGS", "")),
        "program": sha256(lowered.as_text().encode()).hexdigest()[:16],
    }
    first = run_on_process_0(lambda: mine)
    differ = [
        f"{key}: {mine[key]}, and {first[key]} there" for key in mine if mine[key] != first[key] and key != "host"
    ]
    if differ:
        raise UserError(
            f"process {jax.process_index()} on {mine['host']} has another program of {what} than process 0 on "
            f"{first['host']} ({'; '.join(differ)}): all processes must run one program; give both hosts the same "
            "packages, files and variables (JAX_*, XLA_FLAGS), or start both with JAX_DUMP_IR_TO=FOLDER and compare "
            "the files"
        )


def compared(program: Wrapped, what: str) -> Callable[..., Any]:
    """`program`, which in a job of several processes goes through `check_program` before its first call with arguments
    of each shape."""
    if jax.process_count() == 1:
        return program
    name_sources_alike()
    checked: set[Hashable] = set()

    def call(*arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments)
        shapes = structure, *((np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves)
        if shapes not in checked:
            check_program(program.lower(*arguments), what)
            checked.add(shapes)
        return program(*arguments)

    return call
