"""Typed records of a scheduled XLA:GPU program: what `parser.py` makes of its text.

A program is a module of computations, each a list of ops in the order in which they are issued. Names are XLA's,
without the percent sign; they are unique in a module, so other dumps (buffer assignment) can refer to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from jaxpar.compiler.program.hlo.opcodes import CALL_OPCODES
from jaxpar.pages.units import plural

HOST_MEMORY = 5
"""XLA's memory space of pinned host memory, written S(5) in a layout."""


class ProgramError(ValueError):
    """Something in XLA's text that the parser or a rule built on it does not know."""

    def __init__(self, problem: str, text: str = "", line: int | None = None):
        where = f"line {line}: " if line is not None else ""
        shown = f": {text if len(text) <= 200 else text[:200] + '...'}" if text else ""
        super().__init__(f"{where}{problem}{shown}")


class Unknown:
    """Operations that no rule covers: they count as memory traffic, with a note."""

    def __init__(self) -> None:
        self._operations: dict[str, set[str]] = {}

    def operation(self, name: str, op: str) -> None:
        """An operation `op` of the kind `name`."""
        self._operations.setdefault(name, set()).add(op)

    def notes(self) -> tuple[str, ...]:
        """A sentence for each kind of operation."""
        return tuple(
            f"{plural(len(ops), 'operation')} that this release does not know "
            f"{'counts' if len(ops) == 1 else 'count'} as memory traffic: {name}"
            for name, ops in self._operations.items()
        )


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """One array. `token` and `opaque` have no elements that take memory."""

    dtype: str
    """XLA's name, as in `bf16`."""
    dims: tuple[int, ...]
    memory_space: int
    """0 is device memory, `HOST_MEMORY` the host's."""
    bits: int
    """Bits per element; types below 8 bits are packed."""

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes of the packed elements, without padding of the layout."""
        return (self.elements * self.bits + 7) // 8


type Shape = ArrayShape | tuple[Shape, ...]


def leaves(shape: Shape) -> Iterator[ArrayShape]:
    """The arrays of a shape, depth first."""
    if isinstance(shape, ArrayShape):
        yield shape
    else:
        for part in shape:
            yield from leaves(part)


def shape_bytes(shape: Shape) -> int:
    """Bytes of all arrays of a shape, on device and host."""
    return sum(leaf.bytes for leaf in leaves(shape))


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of an op: the result of the op `name`."""

    name: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of the user's program on the stack that traced an op."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Op:
    """One instruction of an HLO computation."""

    name: str
    opcode: str
    shape: Shape
    operands: tuple[Operand, ...]
    attributes: Mapping[str, str] = field(repr=False)
    """Attributes as text, without metadata and those that have a field."""
    literal: str
    """The text between the parentheses of `parameter(0)` and `constant(...)`."""
    called: tuple[str, ...]
    """Computations named by the op: a fusion's body, a loop's body and condition, branches, a reduction."""
    op_name: str
    """JAX's path of scopes and primitives; empty for what XLA made without one."""
    frames: tuple[Frame, ...] = field(repr=False)
    """Where it was traced, innermost frame first."""
    computation: str
    line: int
    """Line of the text, from 1."""

    @property
    def config(self) -> Mapping[str, Any]:
        """`backend_config` as JSON; empty where there is none. Raises `ProgramError` if it is not a JSON object."""
        text = self.attributes.get("backend_config", "{}")
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise ProgramError(f"backend_config of {self.name} is not JSON ({error.msg})", text, self.line) from None
        if not isinstance(value, dict):
            raise ProgramError(f"backend_config of {self.name} is not a JSON object", text, self.line)
        return value

    @property
    def target(self) -> str:
        """`custom_call_target`; empty for other ops."""
        return self.attributes.get("custom_call_target", "").strip('"')

    @property
    def source(self) -> Frame | None:
        """The innermost frame of the source location; None without one."""
        return self.frames[0] if self.frames else None

    def computation_of(self, attribute: str) -> str:
        """Name of the computation in an attribute such as `body` or `calls`."""
        try:
            return self.attributes[attribute].lstrip("%")
        except KeyError:
            raise ProgramError(f"{self.opcode} {self.name} has no attribute {attribute}", line=self.line) from None

    def dims_of(self, attribute: str) -> tuple[int, ...]:
        """Numbers of an attribute such as `dimensions={0,2}`; empty where it is absent."""
        text = self.attributes.get(attribute, "{}").strip("{}")
        return tuple(int(part) for part in text.split(",")) if text else ()


@dataclass(frozen=True, slots=True)
class Computation:
    """A list of ops in scheduled order."""

    name: str
    ops: tuple[Op, ...] = field(repr=False)
    root: Op
    parameters: tuple[Op, ...] = field(repr=False)
    """The parameter ops, in the order of their numbers."""
    by_name: Mapping[str, Op] = field(repr=False)

    def users(self) -> dict[str, list[tuple[Op, int]]]:
        """For each op, the ops that take its result and at which place."""
        by_op: dict[str, list[tuple[Op, int]]] = {op.name: [] for op in self.ops}
        for op in self.ops:
            for index, operand in enumerate(op.operands):
                by_op[operand.name].append((op, index))
        return by_op


@dataclass(frozen=True, slots=True)
class Module:
    """A scheduled program for one device of an SPMD partition."""

    name: str
    computations: Mapping[str, Computation] = field(repr=False)
    entry: str
    partitions: int
    unknown: Unknown = field(repr=False)
    """Instructions for which there is no rule; `costs` adds the kernels whose work is not known."""

    @property
    def entry_computation(self) -> Computation:
        """The computation with which the program begins."""
        return self.computations[self.entry]

    def body(self, op: Op) -> Computation:
        """The computation that a fusion, an asynchronous start or a call runs."""
        applied = op.opcode in CALL_OPCODES and "calls" not in op.attributes
        name = op.computation_of("to_apply" if applied else "calls")
        return self.computations[name]
