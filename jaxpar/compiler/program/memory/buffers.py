"""XLA's buffer assignment from two files of a dump: where each value is, when it is alive, and what is at the peak.

`*-buffer-assignment.txt` lists allocations and the values in each (size and offset); `*-live-range.txt` gives the order
of all ops with loops and calls laid out in line, and the first and last place in that order at which a value lives.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxpar.compiler.program.hlo.records import HOST_MEMORY, ProgramError

_ALLOCATION = re.compile(r"allocation (\d+): size (\d+)(?:, color (\d+))?, page \d+(.*?):?$")
_VALUE = re.compile(
    r" value: <\d+ (?P<op>[\w.\-]+)(?:\{(?P<path>[\d,]*)\})?(?: \(phi\))? @(?P<space>\d+)> "
    r"\(size=(?P<size>\d+),offset=(?P<offset>\d+)\): (?P<shape>.*)$"
)
_REUSED = " reused by buffers of a different color:"
_REUSING = re.compile(r"  value: <\d+ (?P<op>[\w.\-]+)(?:\{(?P<path>[\d,]*)\})?(?: \(phi\))? @\d+> \(color=\d+\)$")
_PARAMETER = re.compile(r", parameter (\d+), shape \|.*\| at ShapeIndex \{([\d,]*)\}")
_KINDS = {
    "": "live-out",
    ", preallocated-temp": "temporary",
    ", constant": "constant",
    ", thread-local": "thread-local",
}
_PLACE = re.compile(r"    (\d+):(.*)$")
_LIVE = re.compile(r"    (.*)\{([\d,]*)\}:(\d+)-(\d+)$")
_SECTIONS = {"InstructionSequence:": "place in the order", "BufferLiveRange:": "live range"}
_HEADINGS = ("HloLiveRange", "InstructionSequence", "BufferLiveRange", "Live ranges at", "Stack trace breakdown")


@dataclass(frozen=True, slots=True)
class Value:
    """An array (or the table of a tuple) that an op makes, and where it is."""

    op: str
    """Name of the op, as in the dump's own HLO text."""
    path: tuple[int, ...]
    """The part of the op's result."""
    size: int
    offset: int
    """Bytes from the start of its allocation."""
    shape: str
    first_live: int
    """First place in the order at which it is alive."""
    last_live: int
    """The last place at which the value is live."""

    @property
    def end(self) -> int:
        """Offset after its last byte."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Allocation:
    """A stretch of memory."""

    index: int
    size: int
    kind: str
    """`parameter`, `output`, `constant`, `thread-local`, `temporary` or `live-out`."""
    parameter: int | None
    """Number of the entry's parameter that is here."""
    memory_space: int
    """0 is device memory, `HOST_MEMORY` the host's; others are parts of device memory, such as NCCL's buffers."""
    values: tuple[Value, ...]

    @property
    def on_host(self) -> bool:
        """Whether it is in the host's memory."""
        return self.memory_space == HOST_MEMORY

    @property
    def shared(self) -> bool:
        """Whether values share it over time; other allocations are held from start to end."""
        return self.kind == "temporary"


@dataclass(frozen=True, slots=True)
class Buffers:
    """All allocations, and the order of ops that lifetimes count in."""

    allocations: tuple[Allocation, ...]
    order: tuple[str, ...]
    """Names of ops; loops, branches and calls laid out in line."""

    @property
    def beside(self) -> int:
        """Bytes on the device that XLA's own total leaves out: of its other memory spaces."""
        return sum(a.size for a in self.allocations if not a.on_host and a.memory_space)


def parse_buffers(assignment: str, live_ranges: str) -> Buffers:
    """Read the texts of `*-buffer-assignment.txt` and `*-live-range.txt`. Raises `ProgramError` for unknown lines."""
    order, lives = _live_ranges(live_ranges)
    lines = [(lineno, line) for lineno, line in enumerate(assignment.splitlines(), start=1) if line]
    if not lines or lines[0][1] != "BufferAssignment:":
        raise ProgramError("not a buffer assignment", assignment[:60])
    allocations: list[Allocation] = []
    values: list[Value] = []
    head: tuple[int, str] | None = None
    known: set[tuple[str, tuple[int, ...]]] = set()
    """Values of an allocation of one memory space, some of which XLA lists once more: those of another space."""
    for lineno, line in [*lines[1:], (len(lines), "")]:
        if line.startswith(" value: "):
            if head is None:
                raise ProgramError("a value before the first allocation", line, lineno)
            values.append(_value(line, lineno, lives))
            continue
        if line == _REUSED:
            known = {(value.op, value.path) for value in values}
            continue
        if (again := _REUSING.match(line)) and (again["op"], _path(again["path"] or "")) in known:
            continue
        if head is not None:
            allocations.append(_allocation(head, values))
            values = []
        if line and not line.startswith("allocation "):
            raise ProgramError("line is not understood", line, lineno)
        head = (lineno, line)
    return Buffers(tuple(allocations), order)


def _allocation(head: tuple[int, str], values: list[Value]) -> Allocation:
    lineno, line = head
    match = _ALLOCATION.match(line)
    if match is None:
        raise ProgramError("allocation is not understood", line, lineno)
    index, size, color, rest = int(match[1]), int(match[2]), int(match[3] or 0), match[4]
    rest = rest.removesuffix(", maybe-live-out")
    parameter = _PARAMETER.fullmatch(rest)
    if parameter:
        kind = "parameter"
    elif rest.startswith(", output shape is |"):
        kind = "output"
    elif rest in _KINDS:
        kind = _KINDS[rest]
    else:
        raise ProgramError("allocation is not understood", line, lineno)
    at = int(parameter[1]) if parameter else None
    return Allocation(index, size, kind, at, color, tuple(values))


def _value(line: str, lineno: int, lives: dict[tuple[str, tuple[int, ...]], tuple[int, int]]) -> Value:
    match = _VALUE.match(line)
    if match is None:
        raise ProgramError("value is not understood", line, lineno)
    path = _path(match["path"] or "")
    # What lives inside one kernel (a reduction's scalars) has no place in the order.
    first_live, last_live = lives.get((match["op"], path), (-1, -1))
    return Value(match["op"], path, int(match["size"]), int(match["offset"]), match["shape"], first_live, last_live)


def _live_ranges(text: str) -> tuple[tuple[str, ...], dict[tuple[str, tuple[int, ...]], tuple[int, int]]]:
    order: list[str] = []
    lives: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
    heading = ""
    for lineno, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("    "):
            heading = line.strip()
            if heading and not heading.startswith(_HEADINGS):
                raise ProgramError("section of the live ranges is not known", line, lineno)
        elif heading == "InstructionSequence:" and (match := _PLACE.match(line)) and int(match[1]) == len(order):
            order.append(match[2])
        elif heading == "BufferLiveRange:" and (match := _LIVE.match(line)):
            lives[match[1], _path(match[2])] = int(match[3]), int(match[4])
        elif heading in _SECTIONS:
            raise ProgramError(f"{_SECTIONS[heading]} is not understood", line, lineno)
    if not order or not lives:
        raise ProgramError("the live ranges name no order or no value")
    return tuple(order), lives


def _path(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()


@dataclass(frozen=True)
class Occupant:
    """Bytes of one value at one moment."""

    value: Value
    allocation: Allocation
    bytes: int
    """Bytes that count as this value's; less than its size where another value shares them."""
    shared_with: tuple[Value, ...]
    """Other values in exactly the same bytes at that moment, such as a loop's view of its input."""


def timeline(buffers: Buffers) -> np.ndarray:
    """Live bytes at each place of `buffers.order` [places].

    In the shared allocation, bytes in which some value lives; values that share bytes count once. Every other
    allocation (inputs, results, constants) is held from start to end. XLA's own peak is computed from the same
    lifetimes and agrees within kilobytes.
    """
    live = np.zeros(len(buffers.order), np.int64)
    for allocation in buffers.allocations:
        if not allocation.on_host:
            live += _live(allocation, len(buffers.order)) if allocation.shared else allocation.size
    return live


def peak(buffers: Buffers) -> tuple[int, int]:
    """(place in the order, bytes) where most is live; the first of equals."""
    live = timeline(buffers)
    position = int(live.argmax())
    return position, int(live[position])


def occupants(buffers: Buffers, position: int) -> list[Occupant]:
    """Values live at `position`, largest first. Every live byte counts for one value: the sum is the timeline there."""
    live: list[Occupant] = []
    for allocation in buffers.allocations:
        if allocation.on_host:
            continue
        if allocation.shared:
            live.extend(_cover(allocation, [v for v in allocation.values if v.first_live <= position <= v.last_live]))
        else:
            values = [v for v in allocation.values if v.first_live <= position <= v.last_live] or list(
                allocation.values
            )
            first = max(
                values, key=lambda v: (v.size, -v.first_live), default=Value("", (), allocation.size, 0, "", -1, -1)
            )
            live.append(Occupant(first, allocation, allocation.size, tuple(v for v in values if v is not first)))
    return sorted(live, key=lambda occupant: -occupant.bytes)


def _live(allocation: Allocation, places: int) -> np.ndarray:
    """Bytes of an allocation in which some value lives, at each place."""
    values = [v for v in allocation.values if v.first_live >= 0]
    bounds = np.unique([b for v in values for b in (v.offset, v.end)])
    widths = np.diff(bounds)
    holders, change = np.zeros(len(widths), np.int64), np.zeros(places + 1, np.int64)
    events = [event for v in values for event in ((v.first_live, 1, v), (v.last_live + 1, -1, v))]
    for position, step, value in sorted(events, key=lambda event: event[0]):
        span = slice(*np.searchsorted(bounds, (value.offset, value.end)))
        before = holders[span] > 0
        holders[span] += step
        change[position] += ((holders[span] > 0).astype(np.int64) - before) @ widths[span]
    return change[:places].cumsum()


def _cover(allocation: Allocation, values: Sequence[Value]) -> list[Occupant]:
    """Share the bytes in which `values` live among them: larger first, of equals the one born first."""
    cover: list[Occupant] = []
    used: list[tuple[int, int]] = []
    alike: dict[tuple[int, int], list[Value]] = {}
    for value in values:
        alike.setdefault((value.offset, value.size), []).append(value)
    for (offset, size), same in sorted(alike.items(), key=lambda item: -item[0][1]):
        inside, reached = 0, offset
        for begin, end in sorted(used):  # bytes that values before it have
            inside += max(0, min(end, offset + size) - max(begin, reached))
            reached = max(reached, end)
        first, *others = sorted(same, key=lambda v: v.first_live)
        if inside < size:
            cover.append(Occupant(first, allocation, size - inside, tuple(others)))
        used.append((offset, offset + size))
    return cover
