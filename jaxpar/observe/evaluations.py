"""`evaluations.jsonl` in a run's folder: what `python -m jaxpar.evaluate` measured, an object for each call.

An object has `time` (ISO 8601, UTC), `model`, the `step` of the checkpoint, `length` (tokens that the model read at
most), `compute` (the dtype), and `tasks`: by name, `kind`, `examples`, and `metrics`, which are [value, standard error]
by name, either of them null where it is no finite number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from jaxpar.observe.files import GrowingFile

EVALUATIONS_FILE = "evaluations.jsonl"


def append_evaluation(folder: Path, record: Mapping[str, object]) -> None:
    """Add an object to the file of a run, on a line of its own: a kill or a full disk may have left half a line.

    Raises:
        OSError: it cannot be written.
        ValueError: a number is not finite; nothing was written.
    """
    path = folder / EVALUATIONS_FILE
    unfinished = path.is_file() and (content := path.read_bytes()) and not content.endswith(b"\n")
    file = GrowingFile(path)
    try:
        file.append(b"\n" * bool(unfinished) + (json.dumps(record, allow_nan=False) + "\n").encode())
    finally:
        file.close()
