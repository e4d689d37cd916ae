"""The tables of source lines at the head of an HLO module: files, functions, locations, stack frames."""

from __future__ import annotations

import re

from jaxpar.compiler.program.hlo.records import Frame, ProgramError

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

    def read(self, line: str, number: int) -> bool:
        """Take a line of the tables; False if it belongs to none. Raises `ProgramError` for a malformed row."""
        if line in _ROWS:
            self._table = line
            return True
        if not self._table or not line[0].isdigit():
            return False
        match = _ROWS[self._table].match(line)
        if match is None:
            raise ProgramError(f"row of {self._table} is not understood", line, number)
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
