"""`evaluations.jsonl` in a run's folder: what `python -m jaxpar.evaluate` measured, an object for each call.

An object has `time` (ISO 8601, UTC), `model`, the `step` of the checkpoint, `length` (tokens that the model read at
most), `compute` (the dtype), and `tasks`: by name, `kind`, `examples`, and `metrics`, which are [value, standard error
or null] by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxpar.observe.files import GrowingFile

EVALUATIONS_FILE = "evaluations.jsonl"


def append_evaluation(folder: Path, record: Mapping[str, Any]) -> None:
    """Add an object to the file of a run.

    Raises:
        OSError: it cannot be written.
    """
    file = GrowingFile(folder / EVALUATIONS_FILE)
    try:
        file.append((json.dumps(record) + "\n").encode())
    finally:
        file.close()
