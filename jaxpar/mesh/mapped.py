"""Functions on every device of a mesh."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import PyTree

type Layouts = PyTree[PartitionSpec]
"""A partition for each array of a tree, or for all arrays of a part of it."""


def mapped[**P, R](
    function: Callable[P, R], mesh: Mesh | AbstractMesh, compute: str, in_layouts: Layouts, out_layouts: Layouts
) -> Callable[P, R]:
    """`function` on every device of `mesh`, manual over every axis, with varying types checked.

    Where `compute` (a dtype) is float32, matmuls are float32 on GPUs too, which would multiply in TF32 by default.
    """
    precision = "highest" if compute == "float32" else "default"

    @wraps(function)
    def precise(*arguments: P.args, **named: P.kwargs) -> R:
        with jax.default_matmul_precision(precision):
            return function(*arguments, **named)

    return jax.shard_map(precise, mesh=mesh, in_specs=in_layouts, out_specs=out_layouts, check_vma=True)
