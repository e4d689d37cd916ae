"""The documents of a unit that are prepared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxpar.data.prepare.input.compression import Progress
from jaxpar.data.prepare.input.documents import Document, documents
from jaxpar.data.prepare.job import Job


def unit_documents(job: Job, unit: int, progress: Progress) -> Iterator[tuple[int, Document]]:
    """The documents of a unit, each with the index of its input. Raises `UserError` when an input cannot be read."""
    for part in job.units[unit]:
        file = job.inputs[part.input]
        contents = documents(
            file,
            part.first,
            part.last,
            key=job.text_key,
            scratch=job.work,
            max_expansion=job.max_expansion,
            progress=progress,
        )
        for document in contents:
            yield part.input, document


def chosen_documents(job: Job, unit: int, progress: Progress) -> Iterator[tuple[int, Document]]:
    """`unit_documents` without those that are left out."""
    path = left_out_file(job, unit)
    left_out = set(np.load(path, allow_pickle=False).tolist()) if path.exists() else set()
    for ordinal, each in enumerate(unit_documents(job, unit, progress)):
        if ordinal not in left_out:
            yield each


def left_out_file(job: Job, unit: int) -> Path:
    """The ordinals of the documents of a unit that are left out, where documents are chosen."""
    return job.screened_folder / f"{unit:08d}.npy"
