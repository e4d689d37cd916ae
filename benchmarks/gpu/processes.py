"""What a process that checks or measures runs with."""

from __future__ import annotations

import os
from pathlib import Path

from jaxpar.hardware.xla_flags import merged, xla_flags


def environment(compiled: Path, *more: str) -> dict[str, str]:
    """Variables of a process: the XLA flags of a run and `more`, memory as it is needed, and programs compiled once,
    which are kept in the folder `compiled`. What the user has set stays."""
    defaults = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
    }
    flags = merged(xla_flags(), " ".join([*more, os.environ.get("XLA_FLAGS", "")]))
    return defaults | os.environ | {"XLA_FLAGS": flags}
