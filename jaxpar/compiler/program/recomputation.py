"""What runs a second time: by rematerialisation in the backward pass, or because XLA ran out of memory."""

from __future__ import annotations

import re

from jaxpar.compiler.program.hlo.records import Module, Op
from jaxpar.compiler.program.scopes import innermost, segments

RECOMPUTED = ("rematted_computation", "recompute")
"""Scopes of what runs a second time: JAX's own, and one for kernels that recompute inside their derivative."""

_COPY = re.compile(r"\.remat\d*\b")


def recomputed(op_name: str) -> bool:
    """Whether JAX's scopes mark this as recomputed for the backward pass."""
    return any(innermost(segment) in RECOMPUTED for segment in segments(op_name))


def runs_again(op: Op, repeated: frozenset[str]) -> bool:
    """Whether the op repeats work, judged by its own names; `repeated` are those of `repeated_by_xla`.

    What a loop or a branch runs may carry the names of another call of the same code: then the call decides, see
    `loops.Executions.again`.
    """
    return recomputed(op.op_name) or op.name in repeated


def repeated_by_xla(module: Module) -> frozenset[str]:
    """Names of the ops with which XLA itself repeats another op of the program, to save memory.

    A copy alone is none of them: where nothing but copies uses an op, XLA deletes the op, so that it has only been
    moved to where it is used.
    """
    seen = {name for computation in module.computations.values() for name in computation.by_name}
    repeats: set[str] = set()
    for computation in module.computations.values():
        for op in computation.ops:
            if (suffix := _COPY.search(op.name)) is None:
                continue
            original = op.name[: suffix.start()]
            if original in seen:
                repeats.add(op.name)
            seen.add(original)
    return frozenset(repeats)
