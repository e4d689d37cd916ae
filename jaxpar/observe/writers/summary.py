"""`summary.json`: the end of a run in one object."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from jaxpar.config.reading.text_file import read_file
from jaxpar.config.strict_json import json_text
from jaxpar.observe.events import Listener, RunInfo, Summary
from jaxpar.observe.files import write_atomically

SUMMARY_FILE = "summary.json"


class SummaryFile(Listener):
    """Writes the fields of `Summary` at the end of a run; a value that is not finite becomes null."""

    def __init__(self) -> None:
        self._folder = Path()

    def start(self, info: RunInfo) -> None:
        self._folder = Path(info.folder)

    def end(self, summary: Summary) -> None:
        text = json_text(asdict(summary), indent=2) + "\n"
        write_atomically(self._folder / SUMMARY_FILE, text.encode())


def read_summary(file: Path) -> dict[str, Any] | None:
    """The fields that `SummaryFile` wrote to `file`; None where it did not write this.

    Raises `OSError` when it cannot be read.
    """
    try:
        values = json.loads(read_file(file))
    except (ValueError, RecursionError):
        return None
    known = {field.name: field.default is MISSING for field in fields(Summary)}
    if not isinstance(values, dict) or not {name for name, needed in known.items() if needed} <= values.keys():
        return None
    numbers = [value for name, value in values.items() if name not in ("memory_kind", "epochs")]
    plain = all(value is None or type(value) in (int, float) for value in numbers)
    return values if values.keys() <= known.keys() and plain and type(values["steps"]) is int else None
