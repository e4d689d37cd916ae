"""Functions on every device of a mesh."""

from __future__ import annotations

from functools import wraps
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh


def mapped(function: Any, mesh: Mesh | AbstractMesh, compute: str, in_layouts: Any, out_layouts: Any) -> Any:
    """`function` on every device of `mesh`, manual over every axis, with varying types checked.

    Where `compute` (a dtype) is float32, matmuls are float32 on GPUs too, which would multiply in TF32 by default.
    """
    precision = "highest" if compute == "float32" else "default"

    @wraps(function)
    def precise(*arguments: Any) -> Any:
        with jax.default_matmul_precision(precision):
            return function(*arguments)

    return jax.shard_map(precise, mesh=mesh, in_specs=in_layouts, out_specs=out_layouts, check_vma=True)
