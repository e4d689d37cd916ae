"""The cost of each op: matrix products, other arithmetic, bytes of memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jaxpar.compiler.program.costs.matmuls import QUIET_TARGETS, Attention, Product, products
from jaxpar.compiler.program.costs.slices import Slices
from jaxpar.compiler.program.hlo.opcodes import CONTROL, ELEMENTWISE, FREE, REDUCTIONS, wrapped_opcode
from jaxpar.compiler.program.hlo.records import Module, Op, leaves
from jaxpar.compiler.program.loops import Executions
from jaxpar.compiler.program.transfers import inner_op, pairs, transfers

ATTENTION_SOURCES = ("pallas_kernels/attention/", "jaxpar/attention/")
"""Parts of file names whose lines compute attention."""

KINDS = ("matmul", "attention", "elementwise", "copy", "collective", "offload")
"""Kinds of ops. `attention` is all that is traced in attention's sources, softmax included; `copy` moves data inside
the device, `offload` between device and host."""


@dataclass(frozen=True)
class Cost:
    """One op that runs as a kernel or a transfer, per execution."""

    op: Op
    kind: str
    """One of `KINDS`."""
    products: tuple[Product, ...]
    """The matrix products that the op computes."""
    recomputed_flops: float
    """The part of their FLOPs that repeats the forward pass, or that XLA does twice to save memory."""
    vector_flops: float
    """Other operations on floating-point or integer elements."""
    read_bytes: int
    written_bytes: int
    executions: float
    """Executions in a step."""

    @property
    def flops(self) -> float:
        """FLOPs of matrix products."""
        return sum(product.flops for product in self.products)

    @property
    def arithmetic(self) -> str:
        """Type of the product with the most work; empty without any."""
        return max(self.products, key=lambda product: product.flops).arithmetic if self.products else ""

    @property
    def moved_bytes(self) -> int:
        """Bytes that it reads and writes."""
        return self.read_bytes + self.written_bytes

    @property
    def computes(self) -> bool:
        """Whether it keeps the device's units busy, unlike a transfer."""
        return self.kind not in ("collective", "offload")


def costs(module: Module, counts: Executions, *, attention: str | None = None) -> list[Cost]:
    """Costs of all ops that run, in order of computations and issue.

    An asynchronous op is counted at its start. Loops, branches and calls cost nothing themselves. What there is no rule
    for moves its operands and its result through memory (`Module.unknown`).

    Args:
        module: The program.
        counts: How often each computation runs.
        attention: As for `products`.
    """
    slices, op_costs = Slices(module), []
    for name in counts.counts:
        computation = module.computations[name]
        dones = pairs(computation)
        moved = {transfer.start.name: transfer.channel for transfer in transfers(module, computation)}
        for op in computation.ops:
            inner = inner_op(op, dones[op.name]) if op.name in dones else op
            channel = moved.get(op.name, "")
            free = FREE if channel else FREE | CONTROL
            if wrapped_opcode(inner.opcode)[1] or inner.opcode in free or inner.target in QUIET_TARGETS:
                continue
            worked = tuple(products(module, inner, attention=attention))
            op_costs.append(_cost(module, inner, worked, slices, channel, counts))
    return op_costs


def _cost(
    module: Module, op: Op, worked: tuple[Product, ...], slices: Slices, channel: str, counts: Executions
) -> Cost:
    repeated = 1.0 if op.name in counts.repeated_by_xla else counts.again[op.computation] / max(counts.count(op), 1.0)
    vector = 0.0 if channel else _vector_flops(module, op)
    in_attention = any(part in frame.file for frame in op.frames for part in ATTENTION_SOURCES)
    if channel:
        kind = "collective" if channel == "wire" else "offload"
    elif any(isinstance(product.shape, Attention) for product in worked) or in_attention:
        kind = "attention"
    elif worked:
        kind = "matmul"
    else:
        kind = "elementwise" if vector else "copy"
    flops = sum(product.flops for product in worked)
    again = sum(product.recomputed_flops for product in worked)
    return Cost(
        op=op,
        kind=kind,
        products=worked,
        recomputed_flops=again + (flops - again) * repeated,
        vector_flops=vector,
        read_bytes=sum(slices.reads(op)),
        written_bytes=slices.writes(op),
        executions=counts.count(op),
    )


def _vector_flops(module: Module, op: Op) -> float:
    """Operations of one execution outside matrix products."""
    if op.opcode == "fusion":
        return sum(_vector_flops(module, inner) for inner in module.body(op).ops)
    if op.opcode in ELEMENTWISE and op.opcode != "convert":
        return float(sum(leaf.elements for leaf in leaves(op.shape)))
    if op.opcode in REDUCTIONS:
        return float(sum(leaf.elements for operand in op.operands for leaf in leaves(operand.shape)))
    return 0.0


def flops_by_kind(costs: Iterable[Cost]) -> dict[str, float]:
    """FLOPs of matrix products in a step, by kind."""
    totals: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    for cost in costs:
        totals[cost.kind] += cost.flops * cost.executions
    return {kind: flops for kind, flops in totals.items() if flops}


def float8_flops(costs: Iterable[Cost]) -> float:
    """FLOPs of matrix products in a step whose operands have 8 bits."""
    return sum(cost.flops * cost.executions for cost in costs if cost.arithmetic == "float8")


def recomputed_flops(costs: Iterable[Cost]) -> float:
    """FLOPs of matrix products in a step that repeat the forward pass."""
    return sum(cost.recomputed_flops * cost.executions for cost in costs)
