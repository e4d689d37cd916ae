"""Bytes that an op reads and writes in memory. A buffer that is only sliced counts by the slice, not the whole."""

from __future__ import annotations

from jaxpar.compiler.program.hlo.records import HOST_MEMORY, Computation, Module, Op, Shape, leaves, shape_bytes
from jaxpar.compiler.program.transfers import to_host

_SLICING = ("dynamic-slice", "slice", "gather")
_WORKSPACE = ("__cublas$", "__cudnn$")
"""Custom calls whose last result, if it is bytes, is scratch memory."""


class Slices:
    """Reads and writes of ops of one module; keeps who uses what in fused computations."""

    def __init__(self, module: Module):
        self._module = module
        self._users: dict[str, dict[str, list[tuple[Op, int]]]] = {}

    def reads(self, op: Op) -> list[int]:
        """Bytes read of each operand."""
        if op.opcode == "fusion":
            fused = self._module.body(op)
            return [self._read_inside(fused, fused.parameters[i]) for i in range(len(op.operands))]
        return [self._read_by(op, index, operand.shape) for index, operand in enumerate(op.operands)]

    def writes(self, op: Op, inside: Computation | None = None) -> int:
        """Bytes written for the result of an op, or of one `inside` a fusion."""
        if op.opcode == "fusion":
            body = self._module.body(op)
            return self.writes(body.root, body)
        if inside is not None and op.opcode in ("tuple", "bitcast"):
            return sum(self.writes(inside.by_name[part.name], inside) for part in op.operands)
        if op.opcode == "dynamic-update-slice":
            return shape_bytes(op.operands[1].shape)
        if op.opcode == "scatter":
            return _updates(op)
        if op.opcode == "custom-call" and op.target.startswith(_WORKSPACE) and isinstance(op.shape, tuple):
            *results, last = leaves(op.shape)
            return sum(leaf.bytes for leaf in results) + (last.bytes if last.dtype not in ("s8", "u8") else 0)
        return shape_bytes(op.shape)

    def _read_inside(self, computation: Computation, op: Op) -> int:
        """Bytes of `op`'s result that the rest of a fused computation reads."""
        whole, read = shape_bytes(op.shape), 0
        for user, index in self._users_in(computation)[op.name]:
            if user.opcode in ("bitcast", "get-tuple-element", "tuple", "opt-barrier"):
                read += self._read_inside(computation, user)
            elif user.opcode == "fusion":
                inner = self._module.body(user)
                read += self._read_inside(inner, inner.parameters[index])
            else:
                read += self._read_by(user, index, op.shape)
        if computation.root is op:  # passed on unchanged
            read += whole
        return min(read, whole)

    def _read_by(self, user: Op, index: int, shape: Shape) -> int:
        """Bytes that a single op reads of its operand number `index`."""
        if index == 0 and user.opcode in _SLICING:
            return shape_bytes(user.shape)
        if user.opcode == "dynamic-update-slice" and index == 0:
            return 0
        if user.opcode == "scatter" and index < (len(user.operands) - 1) // 2:
            return _updates(user)
        return shape_bytes(shape)

    def _users_in(self, computation: Computation) -> dict[str, list[tuple[Op, int]]]:
        if computation.name not in self._users:
            self._users[computation.name] = computation.users()
        return self._users[computation.name]


def moved_bytes(module: Module, op: Op) -> int:
    """Bytes that an op moves between device and host."""
    slices = Slices(module)
    if to_host(op):
        return slices.writes(op)
    on_host = lambda operand: any(leaf.memory_space == HOST_MEMORY for leaf in leaves(operand.shape))
    return sum(read for read, operand in zip(slices.reads(op), op.operands, strict=True) if on_host(operand))


def _updates(op: Op) -> int:
    """Bytes of the updates of a scatter of n arrays: operands are n arrays, the indices, n updates."""
    arrays = (len(op.operands) - 1) // 2
    return sum(shape_bytes(operand.shape) for operand in op.operands[arrays + 1 :])
