"""Finds the op that computed a buffer's contents, through loops, tuples, copies and slices written into stacks."""

from __future__ import annotations

from collections.abc import Sequence

from jaxpar.compiler.program.hlo.opcodes import wrapped_opcode
from jaxpar.compiler.program.hlo.records import Module, Op, Operand

_PASSING = ("bitcast", "copy", "reshape", "transpose", "opt-barrier")
"""Ops that pass on their operand, at most in another order."""

type _Place = tuple[str, tuple[int, ...]]
"""Name of an op, and which part of its result."""


class Makers:
    """Looks for makers in one module.

    Args:
        module: The program.
        order: Names of ops in line, from `Buffers.order`. The op inside an asynchronous one has a name there that
            `compiled.as_text()` lacks; its start comes next.
    """

    def __init__(self, module: Module, order: Sequence[str] = ()):
        self._module = module
        self._order = order
        self._places = {name: place for place, name in enumerate(order)}
        self._computation_of = {op.name: c for c in module.computations.values() for op in c.ops}
        self._loops = {
            name: op for c in module.computations.values() for op in c.ops if op.opcode == "while" for name in op.called
        }

    def maker(self, name: str, path: tuple[int, ...] = ()) -> Op | None:
        """The op that computed part `path` of the result of the op `name`; None if the text has no such op.

        A stack that a loop fills slice by slice was made by what made the slices. Where the trace ends in a fusion, it
        is the op inside it; where it comes back to where it was, the op `name` itself.
        """
        if name not in self._computation_of:
            return self._started(name, path)
        place: _Place = (name, path)
        seen: set[_Place] = set()
        while True:
            around = place in seen
            before = self._before_loop(*place) if around else self._back(*place)
            if before is None or (around and before in seen):
                return self._op(name if around else place[0])
            seen.add(place)
            place = before

    def _started(self, name: str, path: tuple[int, ...]) -> Op | None:
        """The maker inside an asynchronous op, under a name that only the order has."""
        following = self._places.get(name, len(self._order)) + 1
        start = self._computation_of.get(self._order[following]) if following < len(self._order) else None
        op = start.by_name[self._order[following]] if start else None
        if op is None or wrapped_opcode(op.opcode)[1] != "start":
            return None
        inside = self._into(op, path) if wrapped_opcode(op.opcode)[0] == "fusion" else None
        return self.maker(*inside) if inside else op

    def _op(self, name: str) -> Op:
        return self._computation_of[name].by_name[name]

    def _back(self, name: str, path: tuple[int, ...]) -> _Place | None:
        """The place from which the contents of another were passed on; None where they were computed."""
        op, computations = self._op(name), self._module.computations
        if op.opcode == "tuple" and path:
            return _at(op.operands[path[0]], path[1:])
        if op.opcode == "get-tuple-element":
            return _at(op.operands[0], (int(op.attributes["index"]), *path))
        if op.opcode in _PASSING:
            return _at(op.operands[0], path)
        if op.opcode == "dynamic-update-slice":
            return _at(op.operands[1], path)
        if op.opcode == "fusion":
            return self._into(op, path)
        if wrapped_opcode(op.opcode)[1] == "done":
            start = self._op(op.operands[0].name)
            return (
                (computations[start.computation_of("calls")].root.name, path) if "calls" in start.attributes else None
            )
        if op.opcode == "while" and path:
            return computations[op.computation_of("body")].root.name, path
        if op.opcode == "parameter" and path and op.computation in self._loops:
            return self._loops[op.computation].name, path
        return None

    def _before_loop(self, name: str, path: tuple[int, ...]) -> _Place | None:
        """Where a loop took a value that it carries unchanged; None for a place that no loop carries."""
        op = self._op(name)
        loop = op if op.opcode == "while" else self._loops.get(op.computation) if op.opcode == "parameter" else None
        return _at(loop.operands[0], path) if loop is not None else None

    def _into(self, fusion: Op, path: tuple[int, ...]) -> _Place | None:
        """From a fusion's result to the op inside that computed it, or to the operand that it passes on."""
        fused = self._module.body(fusion)
        op = fused.root
        if path:
            if op.opcode != "tuple":
                return None
            op = fused.by_name[op.operands[path[0]].name]
        while op.opcode in (*_PASSING, "dynamic-update-slice", "convert"):
            op = fused.by_name[op.operands[1 if op.opcode == "dynamic-update-slice" else 0].name]
        return _at(fusion.operands[int(op.literal)], ()) if op.opcode == "parameter" else (op.name, ())


def _at(operand: Operand, path: tuple[int, ...]) -> _Place:
    return operand.name, (*operand.path, *path)
