"""The number of times that each computation runs in one execution of the program: trip counts multiplied."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from jaxpar.compiler.program.hlo.opcodes import CALL_OPCODES
from jaxpar.compiler.program.hlo.records import Computation, Module, Op, ProgramError
from jaxpar.compiler.program.scopes import recomputed, scopes
from jaxpar.compiler.program.transfers import fused_collective
from jaxpar.layers.experts.messages import FURTHER_ROUNDS
from pallas_kernels.attention.cudnn_packed import CALLS
from pallas_kernels.attention.work import visited_share
from pallas_kernels.grouped_matmul.work import expected_blocks

_COPY = re.compile(r"\.remat\d*\b")


@dataclass(frozen=True)
class Executions:
    """The number of runs of each computation that runs on its own (not a fusion's body or a reduction)."""

    counts: Mapping[str, float]
    again: Mapping[str, float]
    """The number of those runs that a recomputation asked for: under a loop, branch or call that runs again. Ops inside
    may carry the names of the forward pass, because JAX lowers the same code once."""
    conditionals: tuple[Op, ...]
    """Conditionals of which each branch is counted every time."""
    repeated_by_xla: frozenset[str]
    """Names of ops that XLA runs once more than the program asks for."""

    def count(self, op: Op) -> float:
        """The number of times that `op` runs."""
        return self.counts[op.computation]


def trip_count(op: Op) -> int:
    """Iterations of a `while`. Where the data decides, one of the calls of packed attention; and with an equal load of
    experts no further rounds of an exchange, and blocks of a grouped matmul for the rows that are expected.

    Raises `ProgramError` if XLA does not know them.
    """
    try:
        return int(op.config["known_trip_count"]["n"])
    except KeyError:
        if CALLS in op.op_name:
            return 1
        if FURTHER_ROUNDS in (path := scopes(op.op_name)):
            return 0
        if (blocks := expected_blocks(path)) is not None:
            return blocks
        location = f", made at {op.source.file}:{op.source.line}" if op.source else ""
        raise ProgramError(f"XLA does not know how often {op.name} loops{location}", line=op.line) from None


def branches(op: Op) -> tuple[str, ...]:
    """Computations of a conditional: those of a predicate in the order true, false."""
    if "branch_computations" in op.attributes:
        return op.called
    return op.computation_of("true_computation"), op.computation_of("false_computation")


def shares(op: Op) -> float | None:
    """The number of times that the branches of a conditional do something; None if it is not known."""
    return next(filter(None, map(visited_share, scopes(op.op_name))), None)


def controlled(module: Module, op: Op) -> list[tuple[Computation, float]]:
    """Computations that `op` runs op by op, each with how often per execution of `op`; not those that are a transfer.

    Branches of a conditional count as often as a pair of attention's blocks is computed, or else each time: an upper
    bound, exact where the other branches do nothing.
    """
    if op.opcode == "while":
        trips = trip_count(op)
        names = [(op.computation_of("body"), float(trips)), (op.computation_of("condition"), float(trips + 1))]
    elif op.opcode == "conditional":
        share = shares(op)
        names = [(name, 1.0 if share is None else share) for name in branches(op)]
    elif op.opcode in CALL_OPCODES and fused_collective(module, op) is None:
        names = [(module.body(op).name, 1.0)]
    else:
        names = []
    return [(module.computations[name], count) for name, count in names]


def runs_again(op: Op, repeated: frozenset[str]) -> bool:
    """Whether the op repeats work, by its name and scopes; `repeated` are the names of `repeated_by_xla`.

    The body of a loop or a branch may have the names of another call of the same code; see `Executions.again`.
    """
    return recomputed(op.op_name) or op.name in repeated


def repeated_by_xla(module: Module) -> frozenset[str]:
    """Names of the ops with which XLA itself repeats another op of the program, to save memory.

    A copy alone is no repetition: where nothing but copies uses an op, XLA deletes the op, and has only moved it.
    """
    seen = {name for computation in module.computations.values() for name in computation.by_name}
    repeats: set[str] = set()
    for computation in module.computations.values():
        for op in computation.ops:
            if suffix := _COPY.search(op.name):
                original = op.name[: suffix.start()]
                if original in seen:
                    repeats.add(op.name)
                seen.add(original)
    return frozenset(repeats)


def executions(module: Module) -> Executions:
    """Count every computation that the entry reaches. Raises `ProgramError` for a loop without a known trip count."""
    counts: dict[str, float] = {}
    asked_again: dict[str, float] = {}
    conditionals: list[Op] = []
    repeated = repeated_by_xla(module)

    def walk(computation: Computation, times: float, again: bool) -> None:
        if computation.name not in counts:
            unknown = (op for op in computation.ops if op.opcode == "conditional" and shares(op) is None)
            conditionals.extend(unknown)
        counts[computation.name] = counts.get(computation.name, 0.0) + times
        asked_again[computation.name] = asked_again.get(computation.name, 0.0) + times * again
        for op in computation.ops:
            for called, each in controlled(module, op):
                walk(called, times * each, again or runs_again(op, repeated))

    walk(module.entry_computation, 1.0, False)
    return Executions(counts, asked_again, tuple(conditionals), repeated)
