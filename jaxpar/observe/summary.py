"""`summary.json`: the end of a run in one object."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from jaxpar.observe.events import Listener, RunInfo, Summary
from jaxpar.observe.files import strict_json, write_atomically

SUMMARY_FILE = "summary.json"


class SummaryFile(Listener):
    """Writes the fields of `Summary` at the end of a run; a value that is not finite becomes null."""

    def __init__(self) -> None:
        self._folder = Path()

    def start(self, info: RunInfo) -> None:
        self._folder = Path(info.folder)

    def end(self, summary: Summary) -> None:
        text = json.dumps(strict_json(asdict(summary)), indent=2, allow_nan=False) + "\n"
        write_atomically(self._folder / SUMMARY_FILE, text.encode())
