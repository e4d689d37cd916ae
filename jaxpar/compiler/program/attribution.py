"""Each transfer by mesh axis, collective, bytes, wire dtype, line of code and how often it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxpar.compiler.program.costs.slices import moved_bytes
from jaxpar.compiler.program.hlo.groups import Groups, groups_of
from jaxpar.compiler.program.hlo.opcodes import CALL_OPCODES
from jaxpar.compiler.program.hlo.records import ArrayShape, Frame, Module, Op, leaves, shape_bytes
from jaxpar.compiler.program.loops import Executions
from jaxpar.compiler.program.scopes import combined_names, recomputed, scopes
from jaxpar.compiler.program.transfers import Transfer, to_host, transfers

_PAIRS = (
    ("gather_sequence", "scatter_sequence"),
    ("gather_context", "scatter_context"),
    ("gather_tokens", "scatter_tokens"),
    ("gather_rows", "scatter_rows"),
    ("gather_weight", "scatter_gradient"),
    ("gather_matrices", "scatter_matrices"),
    ("exchange_heads", "exchange_sequence"),
)
_SELF_DUAL = ("shift_context", "exchange_tokens", "join_ranks", "shift_stage", "sum_over_stages", "sum_over_heads",
              "reduce_sum", "reduce_max", "sum_over_islands", "gather_from_islands")  # fmt: skip
DUALS = dict(_PAIRS) | {dual: name for name, dual in _PAIRS} | {name: name for name in _SELF_DUAL}
"""The collectives, and the name of the derivative of each."""

LIBRARY_FILES = ("jaxpar/mesh/", "jaxpar/layers/block.py", "jaxpar/layers/ops/", "jaxpar/model/loop/stash.py")
"""Files that implement transfers: their lines do not tell what a transfer is for."""

_TURNED = {"gather": ("reduce-scatter", "all-reduce"), "scatter": ("all-gather",)}
"""Collectives that do the work of the dual of a gather or a scatter."""

OF_TOKENS = ("exchange_tokens", "gather_tokens", "scatter_tokens")
"""Collectives that send tokens to their experts."""
OF_WEIGHTS = ("gather_weight", "scatter_gradient", "gather_rows", "scatter_rows")
"""Collectives that belong to `data` whatever axes they run over."""


def part_of(axis: str, collective: str | None) -> str:
    """The part of a step's time that waits for a collective over axes joined by `+`: `host`, or as in a prediction."""
    axes = set(axis.split("+"))
    if apart := axes & {"host", "islands", "pipe"}:
        return min(apart)
    if collective in OF_TOKENS:
        return "exchange"
    if collective in OF_WEIGHTS or not {"tensor", "context"} & axes or {"replica", "fsdp", "expert"} & axes:
        return "scales" if collective == "reduce_max" else "data"  # largest magnitudes are of all ranks' parts
    return "tensor" if "tensor" in axes else "context"


@dataclass(frozen=True)
class Part:
    """One array of a transfer."""

    collective: str | None
    """The collective that asked for it; None outside all named scopes of `DUALS`."""
    dtype: str
    operand_bytes: int
    """Bytes of this rank's input."""
    sent_bytes: float
    """Bytes that one device sends, by the ring formula of the collective's docstring."""


@dataclass(frozen=True)
class Movement:
    """A transfer of the program, without times."""

    transfer: Transfer
    kind: str
    """The collective, or `to_host` and `from_host`."""
    axes: tuple[str, ...]
    """Mesh axes that the data moves over, slowest first; empty between device and host."""
    ranks: int
    """Devices of a group; 1 between device and host."""
    crosses_nodes: bool
    parts: tuple[Part, ...]
    """One per array. More than one where XLA combined transfers."""
    source: Frame | None
    """The line of the model or the step that asked for it."""
    executions: float
    """Executions in a step."""

    @property
    def channel(self) -> str:
        """The link that it shares with other transfers: `wire` between devices, `to_host` or `from_host`; `wire apart`
        for calls, which XLA runs on a separate stream."""
        if self.transfer.channel == "host":
            return self.kind
        return "wire apart" if self.transfer.start.opcode in CALL_OPCODES else "wire"

    @property
    def axis(self) -> str:
        """Mesh axes joined by `+`, or `host`."""
        return "host" if self.transfer.channel == "host" else "+".join(self.axes)

    @property
    def part(self) -> str:
        """The part of a step's time that waits for it: that of the largest array, where XLA combined several."""
        return part_of(self.axis, max(self.parts, key=lambda part: part.operand_bytes).collective)

    def name_of(self, collective: str | None) -> str:
        """The name of a part for people: its collective between devices, or the direction to or from the host."""
        return self.kind if self.transfer.channel == "host" else collective or "-"

    @property
    def link(self) -> str:
        """The same with two links between devices: those inside a node, and those that leave it."""
        return f"{self.channel} between nodes" if self.crosses_nodes else self.channel

    @property
    def collectives(self) -> tuple[str | None, ...]:
        """The different collectives of the parts, in order."""
        return tuple(dict.fromkeys(part.collective for part in self.parts))

    @property
    def operand_bytes(self) -> int:
        """Bytes of one execution, on one device."""
        return sum(part.operand_bytes for part in self.parts)

    @property
    def sent_bytes(self) -> float:
        """Bytes sent by one device in one execution."""
        return sum(part.sent_bytes for part in self.parts)


def movements(module: Module, counts: Executions, mesh: Mapping[str, int], gpus_per_host: int) -> list[Movement]:
    """All transfers of the program, in order of computations and issue.

    Args:
        module: The program.
        counts: How often each computation runs.
        mesh: Sizes of the mesh axes, slowest first, over the partitions in order.
        gpus_per_host: Devices of one host; partitions are numbered host by host.
    """
    return [
        _movement(module, transfer, counts, mesh, gpus_per_host)
        for name in counts.counts
        for transfer in transfers(module, module.computations[name])
    ]


def _movement(
    module: Module, transfer: Transfer, counts: Executions, mesh: Mapping[str, int], gpus_per_host: int
) -> Movement:
    op = transfer.inner
    times, source = counts.count(transfer.start), source_frame(op.frames)
    if transfer.channel == "host":
        moved = shape_bytes(op.shape) if op.opcode in ("send", "recv") else moved_bytes(module, op)
        dtype = next(leaves(op.shape)).dtype
        part = Part(None, dtype, moved, float(moved))
        kind = "to_host" if op.opcode == "send" or to_host(op) else "from_host"
        return Movement(transfer, kind, (), 1, False, (part,), source, times)
    groups = groups_of(op, module.partitions)
    parts = tuple(
        Part(collective, leaf.dtype, leaf.bytes, sent(op, leaf.bytes, groups))
        for collective, leaf in zip(_asked_by(op), _inputs(op), strict=True)
    )
    ranks = 2 if groups.permutes else groups.size
    return Movement(
        transfer, op.opcode, groups.axes(mesh, op), ranks, groups.crosses(gpus_per_host), parts, source, times
    )


def _inputs(op: Op) -> list[ArrayShape]:
    return [leaf for operand in op.operands for leaf in leaves(operand.shape)]


def sent(op: Op, operand_bytes: int, groups: Groups) -> float:
    """Bytes that one device sends for a collective over groups of n with an input of x bytes.

    all-gather x(n-1), reduce-scatter and all-to-all x(n-1)/n, all-reduce 2x(n-1)/n; a permutation, which XLA may write
    as a send and a receipt, x. These are the bytes that rings send; a switch that reduces (NVLink SHARP) needs less for
    an all-reduce.
    """
    others = (groups.size - 1) / groups.size
    shares = {"all-gather": groups.size - 1, "reduce-scatter": others, "all-to-all": others, "all-reduce": 2 * others}
    return float(operand_bytes * shares.get(op.opcode, 1.0))


def source_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame outside `LIBRARY_FILES`; without one, the innermost of all."""
    outside = (frame for frame in frames if not any(part in frame.file for part in LIBRARY_FILES))
    return next(outside, frames[0] if frames else None)


def collective_of(op_name: str, opcode: str) -> str | None:
    """The collective whose named scope is innermost in `op_name`, or its dual where the op does the dual's work.

    A derivative keeps the scope of what it differentiates. The opcode distinguishes gathers from scatters; for an
    all-to-all, which is its own inverse, the name shows whether it is transposed.
    """
    transposed = "transpose(" in op_name and not recomputed(op_name)
    name = next((name for name in reversed(scopes(op_name)) if name in DUALS), None)
    if name is None:
        return None
    if opcode == "all-to-all":  # a quantized reduction is asked for by a derivative itself
        turned = transposed and name != "scatter_gradient"
    else:
        turned = opcode in _TURNED.get(name.partition("_")[0], ())
    return DUALS[name] if turned else name


def _asked_by(op: Op) -> list[str | None]:
    """Collective of each input. XLA lists the names of what it combines as `prefix/(a:b:c)`.

    Where it gives one name for several inputs, or another number of names, all inputs get the names' common answer, and
    None if they disagree.
    """
    asked, count = [collective_of(name, op.opcode) for name in combined_names(op.op_name)], len(_inputs(op))
    return asked if len(asked) == count else [asked[0] if len(set(asked)) == 1 else None] * count
