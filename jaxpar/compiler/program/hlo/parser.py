"""Parser of scheduled HLO text: a `records.Module`, or `ProgramError`.

It reads `compiled.as_text()`. An unknown opcode is recorded in `Module.unknown`; a line that cannot be parsed is an
error that shows the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from jaxpar.compiler.program.hlo.opcodes import CALLING, known
from jaxpar.compiler.program.hlo.records import Computation, Frame, Module, Op, Operand, ProgramError, Unknown
from jaxpar.compiler.program.hlo.syntax import attributes, closing, shape_end, shape_of, split, without_comments

_OP = re.compile(r"  (ROOT )?%([\w.\-]+) = ")
_OPCODE = re.compile(r" ([a-z][\w\-]*)\(")
_HEADER = re.compile(r"(ENTRY )?%([\w.\-]+) \(.*\) -> .* \{$")
_OPERAND = re.compile(r"(?:\S.* )?%([\w.\-]+)$")
_METADATA = re.compile(r' ?(\w+)=("(?:[^"\\]|\\.)*"|-?\d+)')
_LITERALS = ("parameter", "constant")


@dataclass
class _ComputationBuilder:
    """A computation whose lines are being parsed."""

    name: str
    unknown: Unknown
    ops: list[Op] = field(default_factory=list)
    by_name: dict[str, Op] = field(default_factory=dict)
    root: Op | None = None

    def close(self, line: int) -> Computation:
        if self.root is None:
            raise ProgramError(f"computation {self.name} has no root", line=line)
        parameters = sorted((op for op in self.ops if op.opcode == "parameter"), key=lambda op: int(op.literal))
        return Computation(self.name, tuple(self.ops), self.root, tuple(parameters), self.by_name)


def parse(text: str) -> Module:
    """The module in `text`, which is scheduled HLO. Raises `ProgramError` for what is not."""
    unknown = Unknown()
    lines = [(lineno, line) for lineno, line in enumerate(text.splitlines(), start=1) if line]
    if not lines:
        raise ProgramError("the text is empty")
    lineno, header = lines[0]
    name, attributes_of_module = _module_line(header, lineno)
    stacks, computations, entry = Stacks(), {}, None
    current: _ComputationBuilder | None = None
    for lineno, line in lines[1:]:
        if current is not None:
            if line == "}" or line.startswith("}, execution_thread="):
                computations[current.name] = current.close(lineno)
                current = None
            else:
                _read_op(line, lineno, current, stacks)
            continue
        match = _HEADER.match(line)
        if match:
            current = _ComputationBuilder(match[2], unknown)
            entry = current.name if match[1] else entry
        elif not stacks.read(line, lineno):
            raise ProgramError("line is not understood", line, lineno)
    if entry is None or entry not in computations:
        raise ProgramError("the text ends before the entry computation does")
    module = Module(name, computations, entry, int(attributes_of_module.get("num_partitions", "1")), unknown)
    _check_calls(module)
    return module


def _module_line(line: str, lineno: int) -> tuple[str, dict[str, str]]:
    if not line.startswith("HloModule "):
        raise ProgramError("not an HLO module", line, lineno)
    name, _, rest = line.removeprefix("HloModule ").partition(", ")
    facts = attributes(without_comments(rest))
    if facts.get("is_scheduled") != "true":
        raise ProgramError("the module is not scheduled, so its order is not that of execution", line, lineno)
    if facts.get("replica_count", "1") != "1":
        raise ProgramError("replica_count is above 1; expected num_partitions", line, lineno)
    return name, facts


def _read_op(line: str, lineno: int, current: _ComputationBuilder, stacks: Stacks) -> None:
    try:
        op = _op(line, lineno, current, stacks)
    except ProgramError as error:
        raise ProgramError(str(error), line.strip(), lineno) from None
    current.ops.append(op)
    current.by_name[op.name] = op
    if line.startswith("  ROOT "):
        current.root = op


def _op(line: str, lineno: int, current: _ComputationBuilder, stacks: Stacks) -> Op:
    line = without_comments(line)
    head = _OP.match(line)
    if head is None:
        raise ProgramError("not an instruction")
    after_shape = shape_end(line, head.end())
    call = _OPCODE.match(line, after_shape)
    if call is None:
        raise ProgramError("no opcode after the shape")
    opcode, unknown = call[1], current.unknown
    has_rule = known(opcode)
    if not has_rule:
        unknown.operation(opcode, head[2])
    end = closing(line, call.end() - 1)
    inside, rest = line[call.end() : end], line[end + 1 :]
    fields = attributes(rest.removeprefix(", "))
    op_name, frames = _metadata(fields.pop("metadata", "{}"), stacks)
    literal = opcode in _LITERALS or (not has_rule and "%" not in inside)
    return Op(
        name=head[2],
        opcode=opcode,
        shape=shape_of(line[head.end() : after_shape]),
        operands=() if literal else tuple(_operand(part, current) for part in split(inside)),
        attributes=fields,
        literal=inside if literal else "",
        called=tuple(name for key in CALLING if key in fields for name in _names(fields[key])),
        op_name=op_name,
        frames=frames,
        computation=current.name,
        line=lineno,
    )


def _operand(text: str, current: _ComputationBuilder) -> Operand:
    match = _OPERAND.match(text)
    if match is None:
        raise ProgramError(f"operand {text!r} is not understood")
    if match[1] not in current.by_name:
        raise ProgramError(f"operand %{match[1]} is not defined before it is used")
    return Operand(match[1], current.by_name[match[1]].shape)


def _names(text: str) -> list[str]:
    return [part.lstrip("%") for part in split(text.strip("{}"))]


def _metadata(text: str, stacks: Stacks) -> tuple[str, tuple[Frame, ...]]:
    """The `op_name` of JAX and the Python stack frames."""
    fields = {match[1]: match[2] for match in _METADATA.finditer(text[1:-1])}
    name = re.sub(r"\\(.)", r"\1", fields.get("op_name", '""')[1:-1])
    return name, stacks.frames(int(fields["stack_frame_id"])) if "stack_frame_id" in fields else ()


def _check_calls(module: Module) -> None:
    for computation in module.computations.values():
        for op in computation.ops:
            for name in op.called:
                if name not in module.computations:
                    raise ProgramError(f"{op.name} calls {name}, which is not in the module", line=op.line)


_NAME = re.compile(r'(\d+) "((?:[^"\\]|\\.)*)"$')
_ROWS = {
    "FileNames": _NAME,
    "FunctionNames": _NAME,
    "FileLocations": re.compile(r"(\d+) \{file_name_id=(\d+) function_name_id=(\d+) line=(\d+)(?: \w+=\d+)*\}$"),
    "StackFrames": re.compile(r"(\d+) \{file_location_id=(\d+) parent_frame_id=(\d+)\}$"),
}
"""A row of each table: its key, and its values. The parent of a frame is its key plus one."""


class Stacks:
    """The tables, read line by line, and the stacks that they spell."""

    def __init__(self) -> None:
        self._table = ""
        self._tables: dict[str, dict[int, tuple[str, ...]]] = {name: {} for name in _ROWS}
        self._stacks: dict[int, tuple[Frame, ...]] = {}

    def read(self, line: str, lineno: int) -> bool:
        """Take a line of the tables; False if it belongs to none. Raises `ProgramError` for a malformed row."""
        if line in _ROWS:
            self._table = line
            return True
        if not self._table or not line[0].isdigit():
            return False
        match = _ROWS[self._table].match(line)
        if match is None:
            raise ProgramError(f"row of {self._table} is not understood", line, lineno)
        self._tables[self._table][int(match[1])] = match.groups()[1:]
        return True

    def frames(self, key: int) -> tuple[Frame, ...]:
        """The stack of frame `key`, innermost first; 0 means no frame.

        JAX traces a function several times (for its derivative, for a loop), each on top of the last; a line that
        stands further in already is left out.
        """
        if key not in self._stacks:
            files, functions, locations, parents = self._tables.values()
            stack: dict[Frame, None] = {}
            row = key
            while row != 0:
                if row not in parents:
                    raise ProgramError(f"stack frame {row} is not in the table")
                location, parent = map(int, parents[row])
                file, function, line = map(int, locations[location])
                stack.setdefault(Frame(functions[function][0], files[file][0], line))
                row = parent - 1
            self._stacks[key] = tuple(stack)
        return self._stacks[key]
