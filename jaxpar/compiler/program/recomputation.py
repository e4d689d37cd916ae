"""What runs a second time: for the backward pass, because JAX was told to, or because XLA found no memory."""

from __future__ import annotations

import re

from jaxpar.compiler.program.records import Op
from jaxpar.compiler.program.scopes import innermost, segments

RECOMPUTED = ("rematted_computation", "recompute")
"""Scopes of what runs a second time: JAX's own, and one for kernels that recompute inside their derivative."""

_COPY = re.compile(r"\.remat\d*\b")


def recomputed(op_name: str) -> bool:
    """Whether JAX says that this runs a second time, for the backward pass."""
    return any(innermost(segment) in RECOMPUTED for segment in segments(op_name))


def copied_by_xla(op: Op) -> bool:
    """Whether the op is a copy that XLA made of its own accord, because the program does not fit into memory."""
    return _COPY.search(op.name) is not None


def runs_again(op: Op) -> bool:
    """Whether the op repeats work, as far as its own names say.

    What a loop or a branch runs may carry the names of another call of the same code: then the call decides, see
    `loops.Executions.again`.
    """
    return recomputed(op.op_name) or copied_by_xla(op)
