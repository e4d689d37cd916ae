"""What runs a second time: by rematerialisation in the backward pass, or because XLA ran out of memory."""

from __future__ import annotations

import re

from jaxpar.compiler.program.hlo.records import Op
from jaxpar.compiler.program.scopes import innermost, segments

RECOMPUTED = ("rematted_computation", "recompute")
"""Scopes of what runs a second time: JAX's own, and one for kernels that recompute inside their derivative."""

_COPY = re.compile(r"\.remat\d*\b")


def recomputed(op_name: str) -> bool:
    """Whether JAX's scopes mark this as recomputed for the backward pass."""
    return any(innermost(segment) in RECOMPUTED for segment in segments(op_name))


def copied_by_xla(op: Op) -> bool:
    """Whether XLA itself duplicated this op, because the program does not fit into memory."""
    return _COPY.search(op.name) is not None


def runs_again(op: Op) -> bool:
    """Whether the op repeats work, judged by its own names.

    What a loop or a branch runs may carry the names of another call of the same code: then the call decides, see
    `loops.Executions.again`.
    """
    return recomputed(op.op_name) or copied_by_xla(op)
