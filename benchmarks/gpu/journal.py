"""The results of a part of the suite, row by row, and what it skipped for lack of time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpar.config.strict_json import json_text


class Journal:
    """Rows of a part. They are written immediately, so that the rows of a killed part remain.

    Args:
        part: its name.
        seconds: time that it has; infinite where it does not matter.
        file: where rows are added as lines of JSON; None keeps them here alone.
        dry: whether shapes are tiny and times are meaningless.
        earlier: rows of an earlier run that is continued.
    """

    def __init__(
        self,
        part: str,
        seconds: float,
        file: Path | None = None,
        dry: bool = False,
        earlier: Sequence[Mapping[str, Any]] = (),
    ):
        self.part, self.file, self.dry, self.earlier = part, file, dry, tuple(earlier)
        self.rows: list[dict[str, Any]] = []
        self._end = time.monotonic() + seconds

    def add(self, kind: str, **row: Any) -> None:
        """Add a measured row; `kind` is the table that it belongs to."""
        row = {"part": self.part, "kind": kind, **row}
        self.rows.append(row)
        if self.file is not None:
            with self.file.open("a") as out:
                out.write(json_text(row) + "\n")
                out.flush()
                os.fsync(out.fileno())  # a hung GPU can take the machine with it

    def begin(self, what: str) -> None:
        """Note what starts now: the last such row of a part that hangs or crashes names its case."""
        self.add("begin", what=what)

    def compiling(self, what: str) -> None:
        """Note that programs of `what` are being compiled: no kernel runs, and so none hangs."""
        self.add("compiling", what=what)

    def skip(self, what: str, why: str) -> None:
        """Add a row for something that this run skipped."""
        self.add("skipped", what=what, why=why)

    def has(self, kind: str, **row: Any) -> bool:
        """Whether an earlier run that this one continues has a row of this kind with these values."""
        wanted = {"kind": kind, **row}.items()
        return any(all(one.get(name) == value for name, value in wanted) for one in self.earlier)

    def ended(self, what: str) -> bool:
        """Whether an earlier run has measured `what` in this part, or hung or crashed in it: it is not begun again."""
        ends = ("over", "hang", "crash")
        return any((row["part"], row.get("case")) == (self.part, what) and row["kind"] in ends for row in self.earlier)

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def has_time(self, what: str, seconds: float = 0.0) -> bool:
        """Whether `seconds` are left; if not, `what` is skipped."""
        if self.left > seconds:
            return True
        self.skip(what, f"time budget: {max(self.left, 0.0):.0f} s left, it takes about {seconds:.0f} s")
        return False


def read(file: Path) -> list[dict[str, Any]]:
    """The rows in a file; what was being written when the part was killed is left out."""
    if not file.exists():
        return []
    lines = file.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def begun(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """What had begun, and was not over, when the last of these rows was written."""
    return rows[-1]["what"] if rows and rows[-1]["kind"] in ("begin", "compiling") else None


def compiles(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether programs were being compiled when the last of these rows was written."""
    return bool(rows) and rows[-1]["kind"] == "compiling"
