"""Compiler options that skip machine code: it is not read, and takes half of the time of a compile.

XLA optimizes every kernel with LLVM and assembles it with NVIDIA's ptxas, in a process per kernel, after the program,
its memory and its schedule are final. A stub for ptxas returns at once.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

_STAND_IN = """#!/bin/sh
# Writes empty machine code; XLA chooses by the version of the real one.
if [ "$1" = --version ]; then exec {ptxas} --version; fi
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then : > "$2"; fi
    shift
done
"""


def options_without_machine_code(toolkit: Path | None, folder: Path) -> dict[str, str | int]:
    """Compiler options for programs that never run; `folder`, which is created, stands in for the CUDA `toolkit`.

    None where no toolkit is found, or programs in `folder` may not be executed; kernels are then compiled in full,
    which takes longer.
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
    stand_in = folder / "bin" / "ptxas"
    stand_in.write_text(_STAND_IN.format(ptxas=shlex.quote(str(toolkit / "bin" / "ptxas"))))
    stand_in.chmod(0o755)
    if not os.access(stand_in, os.X_OK):
        return {}
    return {"xla_backend_optimization_level": 0, "xla_gpu_cuda_data_dir": str(folder)}
