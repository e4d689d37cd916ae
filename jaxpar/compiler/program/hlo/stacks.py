"""The tables of source lines at the head of an HLO module: files, functions, locations, stack frames."""

from __future__ import annotations

import re

from jaxpar.compiler.program.hlo.records import Frame, ProgramError

_NAME = re.compile(r'(\d+) "((?:[^"\\]|\\.)*)"$')
_LOCATION = re.compile(r"(\d+) \{file_name_id=(\d+) function_name_id=(\d+) line=(\d+)(?: \w+=\d+)*\}$")
_FRAME = re.compile(r"(\d+) \{file_location_id=(\d+) parent_frame_id=(\d+)\}$")  # the parent's row plus one
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


class Stacks:
    """The tables, read line by line, and the stacks that they spell."""

    def __init__(self) -> None:
        self._table = ""
        self._names: dict[str, dict[int, str]] = {"FileNames": {}, "FunctionNames": {}}
        self._locations: dict[int, Frame] = {}
        self._frames: dict[int, tuple[int, int]] = {}
        self._stacks: dict[int, tuple[Frame, ...]] = {}

    def read(self, line: str, number: int) -> bool:
        """Take a line of the tables; False if it belongs to none. Raises `ProgramError` for a malformed row."""
        if line in _TABLES:
            self._table = line
            return True
        if not self._table or not line[0].isdigit():
            return False
        if self._table == "FileLocations":
            match = _LOCATION.match(line)
            if match:
                key, file, function, row = map(int, match.groups())
                names = self._names
                self._locations[key] = Frame(names["FunctionNames"][function], names["FileNames"][file], row)
        elif self._table == "StackFrames":
            match = _FRAME.match(line)
            if match:
                self._frames[int(match[1])] = int(match[2]), int(match[3]) - 1
        else:
            match = _NAME.match(line)
            if match:
                self._names[self._table][int(match[1])] = match[2]
        if match is None:
            raise ProgramError(f"row of {self._table} is not understood", line, number)
        return True

    def frames(self, key: int) -> tuple[Frame, ...]:
        """The stack of frame `key`, innermost first; 0 means no frame.

        JAX traces a function several times (for its derivative, for a loop), each on top of the last; a line that
        stands further in already is left out.
        """
        if key not in self._stacks:
            found: dict[Frame, None] = {}
            row = key
            while row != 0:
                if row not in self._frames:
                    raise ProgramError(f"stack frame {row} is not in the table")
                location, row = self._frames[row]
                found.setdefault(self._locations[location])
            self._stacks[key] = tuple(found)
        return self._stacks[key]
