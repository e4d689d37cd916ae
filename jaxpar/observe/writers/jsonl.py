"""`metrics.jsonl`: one JSON object per logged step, each step once, also after kills and restores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.strict_json import json_text
from jaxpar.observe.events import Listener, RunInfo, StepRecord
from jaxpar.observe.files import GrowingFile, write_atomically

METRICS_FILE = "metrics.jsonl"


class JsonLines(Listener):
    """Appends every `StepRecord` to `metrics.jsonl`, flushed at once.

    Fields that are None are left out, except `loss`; a value that is not finite is null. When a run starts at
    `first_step`, or goes back to a checkpoint, lines of later steps are removed first, since the checkpoint does not
    include those steps. So is a last line that a kill left unfinished.
    """

    def __init__(self) -> None:
        self._file: GrowingFile | None = None
        self._path = Path()

    def start(self, info: RunInfo) -> None:
        self._path = Path(info.folder) / METRICS_FILE
        self._begin(info.first_step)

    def _begin(self, first_step: int) -> None:
        """Open the file, with the lines of steps before `first_step`."""
        if self._path.exists():
            records = read_metrics(self._path, before=first_step)
            write_atomically(self._path, "".join(_line(values) for values in records).encode())
        self._file = GrowingFile(self._path)

    def step(self, record: StepRecord) -> None:
        assert self._file is not None, "start comes before step"
        values = asdict(record)
        values |= values.pop("blocks") or {}
        values = {key: value for key, value in values.items() if value is not None or key == "loss"}
        self._file.append(_line(values).encode())

    def rewound(self, step: int) -> None:
        assert self._file is not None, "start comes before steps"
        self._file.close()
        self._begin(step + 1)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def read_metrics(path: Path, before: int | None = None) -> list[dict[str, Any]]:
    """The objects of a metrics file in order, without an unfinished last line.

    Args:
        path: The file.
        before: Only steps below this one.

    Raises:
        UserError: A line other than the last is not an object with a step, or its step does not come after the ones
            before it.
    """
    lines = read_file(path, None).splitlines()
    records, last = [], 0
    for line_number, line in enumerate(lines, start=1):
        values = _parse(line)
        if values is None:
            if line_number == len(lines):
                break
            raise UserError(f"{path}: line {line_number} is not a JSON object with a step; move the file away to go on")
        if values["step"] <= last:
            raise UserError(
                f"{path}: line {line_number} is of step {values['step']} and comes after step {last}; "
                "move the file away to go on"
            )
        last = values["step"]
        if before is None or values["step"] < before:
            records.append(values)
    return records


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) and type(values.get("step")) is int else None


def _line(values: Mapping[str, object]) -> str:
    return json_text(values) + "\n"
