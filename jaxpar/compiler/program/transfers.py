"""Transfers: ops that move data between devices, or between device and host, each with its start and its done op.

XLA has several forms of asynchronous transfers; all become one record here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxpar.compiler.program.hlo.opcodes import CALL_OPCODES, CHANNEL_STARTS, COLLECTIVES, FREE, wrapped_opcode
from jaxpar.compiler.program.hlo.records import HOST_MEMORY, Computation, Module, Op, ProgramError, leaves


@dataclass(frozen=True)
class Transfer:
    """One collective or one move between device and host."""

    inner: Op
    """The op that moves data, with the operands and the result of the synchronous form."""
    start: Op
    done: Op
    """The op after which the result can be used; the same as `start` for a synchronous transfer."""
    channel: str
    """The link: `wire` between devices, `host` between device and host."""

    @property
    def synchronous(self) -> bool:
        """Whether the transfer is one blocking op, which nothing overlaps."""
        return self.start is self.done


def inner_op(start: Op, done: Op) -> Op:
    """The op that an asynchronous pair wraps, with the done op's shape: `all-gather(x)` of `all-gather-start(x)`."""
    return replace(start, opcode=wrapped_opcode(start.opcode)[0], shape=done.shape)


def pairs(computation: Computation) -> dict[str, Op]:
    """The done op of each asynchronous start op of `computation`, by the start's name; updates between are followed."""
    done: dict[str, Op] = {}
    start_of: dict[str, str] = {}
    for op in computation.ops:
        base, half = wrapped_opcode(op.opcode)
        if half == "start" or (base in CHANNEL_STARTS and not half):
            start_of[op.name] = op.name
        elif half:
            start = start_of.get(op.operands[0].name)
            if start is None:
                raise ProgramError(f"{op.name} has no start in {computation.name}", line=op.line)
            start_of[op.name] = start
            if half == "done":
                done[start] = op
    for start in set(start_of.values()) - set(done):
        raise ProgramError(f"{start} has no done op in {computation.name}")
    return done


def transfers(module: Module, computation: Computation) -> list[Transfer]:
    """Transfers that start in `computation`, in order of issue."""
    dones = pairs(computation)
    result = []
    for op in computation.ops:
        if op.name in dones:
            done = dones[op.name]
            inner = inner_op(op, done)
        elif wrapped_opcode(op.opcode)[1]:
            continue
        else:
            done = inner = op
        inner = fused_collective(module, inner) or inner
        channel = _channel(inner)
        if channel:
            result.append(Transfer(inner, op, done, channel))
    return result


def fused_collective(module: Module, op: Op) -> Op | None:
    """The collective of a fusion or a call that contains only one. XLA writes small collectives as fusions, and those
    on a separate stream as asynchronous calls.

    Raises `ProgramError` for a fusion that computes beside its collective: there is no rule for its time.
    """
    if op.opcode not in ("fusion", *CALL_OPCODES):
        return None
    inner = [one for one in module.body(op).ops if one.opcode not in FREE]
    collective = next((one for one in inner if one.opcode in COLLECTIVES), None)
    if collective is None:
        return None
    if len(inner) == 1:
        name = op.op_name if op.opcode == "fusion" else collective.op_name
        return replace(
            op, opcode=collective.opcode, op_name=name, attributes=collective.attributes, called=collective.called
        )
    if op.opcode == "fusion":
        raise ProgramError(f"fusion {op.name} computes beside a collective", line=op.line)
    return None


def _channel(op: Op) -> str:
    """`wire`, `host`, or "" for an op that stays on the device."""
    if op.opcode in COLLECTIVES:
        return "wire"
    if op.opcode in CHANNEL_STARTS:
        return "host" if op.attributes.get("is_host_transfer") == "true" else "wire"
    moved = op.opcode in ("copy", "fusion", "dynamic-slice", "dynamic-update-slice")
    return "host" if moved and to_host(op) is not None else ""


def to_host(op: Op) -> bool | None:
    """Whether an op that copies writes host memory (True) or reads it (False); None if it does neither."""
    if any(leaf.memory_space == HOST_MEMORY for leaf in leaves(op.shape)):
        return True
    read = any(leaf.memory_space == HOST_MEMORY for operand in op.operands for leaf in leaves(operand.shape))
    return False if read else None
