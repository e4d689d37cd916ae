"""Traces the contents of a buffer through every op that wrote into it, back to those that computed them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxpar.compiler.program.hlo.opcodes import CALL_OPCODES, wrapped_opcode
from jaxpar.compiler.program.hlo.records import Computation, Module, Op, Operand
from jaxpar.compiler.program.loops import branches

_PASSING = frozenset(["bitcast", "copy", "reshape", "transpose", "opt-barrier", "convert"])
"""Ops whose result is their operand in another order or type."""
_NEARBY = 4
"""The number of places that an asynchronous op may be after the op that it wraps, in XLA's order of values."""


class Provenance:
    """Looks back from the values of one program.

    Args:
        module: the program.
        order: names of ops in line, from `Buffers.order`.
    """

    type Place = tuple[Computation, Op, tuple[int, ...]]

    def __init__(self, module: Module, order: Sequence[str] = ()):
        self._module = module
        self._computation_of = {op.name: c for c in module.computations.values() for op in c.ops}
        self._callers = {
            name: op
            for c in module.computations.values()
            for op in c.ops
            if op.opcode == "while" or _enters(op)
            for name in op.called
        }
        self._order = order
        self._places = {name: position for position, name in enumerate(order)}
        self._trails: dict[tuple[str, tuple[int, ...]], tuple[Op, ...]] = {}

    def producer(self, name: str, path: tuple[int, ...] = ()) -> Op | None:
        """The op that computed part `path` of the result of the op `name`; None if the program's text has no such op.

        A stack that a loop fills slice by slice was made by what made the slices, and what a loop carries unchanged by
        what made it before the loop.
        """
        passed = list(self._walk(name, path, deep=True))
        return next((op for op, before in passed if not before), passed[0][0] if passed else None)

    def trail(self, name: str, path: tuple[int, ...] = ()) -> tuple[Op, ...]:
        """The ops that part `path` of the result of `name` passed through, nearest first.

        Empty if the program's text has no such op.
        """
        if (name, path) not in self._trails:
            self._trails[name, path] = tuple(op for op, _ in self._walk(name, path, deep=False))
        return self._trails[name, path]

    def _walk(self, name: str, path: tuple[int, ...], *, deep: bool) -> Iterator[tuple[Op, list[Place]]]:
        """Each op behind a value once, with the places before it: each history to its end where `deep`, else by
        distance."""
        pending, seen = self._start(name, path), set[tuple[str, tuple[int, ...]]]()
        while pending:
            computation, op, part = pending.pop(-1 if deep else 0)
            if (op.name, part) not in seen:
                seen.add((op.name, part))
                before = list(self._back(computation, op, part))
                pending.extend(reversed(before) if deep else before)
                yield op, before

    def _start(self, name: str, path: tuple[int, ...]) -> list[Place]:
        """The place of a value, or of the asynchronous op that wraps what XLA's list of values calls `name`; none if
        the text has neither."""
        if name in self._computation_of:
            owner = self._computation_of[name]
            return [(owner, owner.by_name[name], path)]
        position = self._places.get(name, len(self._order))
        near = (n for n in self._order[position + 1 : position + 1 + _NEARBY] if n in self._computation_of)
        wrapping = ((self._computation_of[n], self._computation_of[n].by_name[n], ()) for n in near)
        return [one for one in wrapping if wrapped_opcode(one[1].opcode)[1] == "start"][:1]

    def _back(self, computation: Computation, op: Op, path: tuple[int, ...]) -> Iterator[Place]:
        """The places that passed on what `op` has at `path`; none where it was computed."""
        if op.opcode == "tuple" and path:
            yield self._at(computation, op.operands[path[0]], path[1:])
        elif op.opcode == "get-tuple-element":
            yield self._at(computation, op.operands[0], (int(op.attributes["index"]), *path))
        elif op.opcode in _PASSING:
            yield self._at(computation, op.operands[0], path)
        elif op.opcode == "dynamic-update-slice":
            yield self._at(computation, op.operands[1], path)
            yield self._at(computation, op.operands[0], path)
        elif _enters(op):
            body = self._module.body(op)
            yield body, body.root, path
        elif op.opcode == "conditional":
            for name in branches(op):
                yield self._module.computations[name], self._module.computations[name].root, path
        elif wrapped_opcode(op.opcode)[1] == "done":
            yield self._at(computation, op.operands[0], path)
        elif op.opcode == "while" and path:
            body = self._module.computations[op.computation_of("body")]
            yield body, body.root, path
            yield self._at(computation, op.operands[0], path)
        elif op.opcode == "parameter" and computation.name in self._callers:
            caller = self._callers[computation.name]
            owner = self._computation_of[caller.name]
            if caller.opcode != "while":
                yield self._at(owner, caller.operands[int(op.literal)], path)
            elif path:
                yield owner, caller, path

    @staticmethod
    def _at(computation: Computation, operand: Operand, path: tuple[int, ...]) -> Place:
        return computation, computation.by_name[operand.name], path


def _enters(op: Op) -> bool:
    """Whether the op runs a computation whose result is its result."""
    return op.opcode in ("fusion", *CALL_OPCODES) or (
        wrapped_opcode(op.opcode)[1] == "start" and "calls" in op.attributes
    )
