"""`events.jsonl`: the events of a run, without its metrics, one JSON object per event.

Unlike `metrics.jsonl`, which holds each step once, this is a log: events after the last checkpoint before a kill stay
in it, and every start of the run adds a `start`. An object has `time` (ISO 8601, UTC), `event`, and `step`, the last
step that was logged before it:

| event | other fields |
|---|---|
| `start` | `steps` (where the run ends), `baseline_loss`, `plan`: rows of [name, value, why] |
| `message` | `text` |
| `anomaly` | `kind`, `text`, and the numbers of that kind (`docs/warnings.md`) |
| `rewound` | `to`: the checkpoint that the run went back to |
| `saved` | `checkpoint`, the step whose state it is, and `path`, in the run's folder where it lies there |
| `sample` | `prompt`, `continuation` |
| `end` | none: the run reached its end, or was asked to stop and saved |
| `failed` | `error`, the type of an error and its text, and `traceback` |
| `close` | `ended`: false where the run failed |
"""

from __future__ import annotations

import traceback
from datetime import UTC, datetime
from pathlib import Path

from jaxpar.config.reading.text_file import read_file
from jaxpar.config.strict_json import json_text
from jaxpar.observe.events import Anomaly, Listener, RunInfo, StepRecord, Summary
from jaxpar.observe.files import GrowingFile, write_atomically

EVENTS_FILE = "events.jsonl"


class EventLog(Listener):
    """Appends every event to `events.jsonl`; a last line that a kill left unfinished is removed first."""

    def __init__(self) -> None:
        self._file: GrowingFile | None = None
        self._folder = Path()
        self._step = 0
        self._ended = False

    def start(self, info: RunInfo) -> None:
        self._folder = Path(info.folder)
        path = self._folder / EVENTS_FILE
        _drop_unfinished_line(path)
        self._file = GrowingFile(path)
        self._step, self._ended = info.first_step - 1, False
        self._write(
            "start", steps=info.steps, baseline_loss=info.baseline_loss, plan=info.rows, came_from=info.came_from
        )

    def step(self, record: StepRecord) -> None:
        self._step = record.step

    def message(self, text: str) -> None:
        if self._file is not None:  # a run with nothing to do sends a message without a start
            self._write("message", text=text)

    def progress(self, text: str, done: int, total: int) -> None:
        if done == 0:
            self.message(text)

    def anomaly(self, anomaly: Anomaly) -> None:
        self._step = anomaly.step
        self._write("anomaly", kind=anomaly.kind, text=anomaly.text, **anomaly.facts)

    def rewound(self, step: int) -> None:
        self._write("rewound", to=step)
        self._step = step

    def saved(self, step: int, path: str) -> None:
        folder = Path(path)
        shown = folder.relative_to(self._folder) if folder.is_relative_to(self._folder) else folder
        self._write("saved", checkpoint=step, path=str(shown))

    def sample(self, prompt: str, continuation: str) -> None:
        self._write("sample", prompt=prompt, continuation=continuation)

    def end(self, summary: Summary) -> None:
        self._ended = True
        self._write("end")

    def failed(self, error: Exception) -> None:
        if self._file is not None:
            [text] = traceback.format_exception_only(error)[-1:]
            self._write("failed", error=text.strip(), traceback="".join(traceback.format_exception(error)))

    def close(self) -> None:
        file = self._file
        if file is None:
            return
        try:
            self._write("close", ended=self._ended)
        finally:
            self._file = None
            file.close()

    def _write(self, event: str, **values: object) -> None:
        assert self._file is not None, "start comes first"
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "event": event, "step": self._step, **values}
        self._file.append((json_text(line) + "\n").encode())


def _drop_unfinished_line(path: Path) -> None:
    if path.exists():
        content = read_file(path, None)
        complete = content[: content.rfind(b"\n") + 1]
        if complete != content:
            write_atomically(path, complete)
