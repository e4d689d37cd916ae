"""The pass over the inputs, before they are tokenized, that chooses documents.

Workers write for each unit why its documents are left out, and the signatures of the others; then this process looks
for duplicates among all of them, in the order of the inputs: the choice is the same for any number of processes.
"""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

from jaxpar.config.parts import LABELS_FORMAT, PAIRS_FORMAT
from jaxpar.data.chat.conversation import conversation_of, labelled_of, pair_of
from jaxpar.data.chat.messages import Message, Unusable
from jaxpar.data.prepare.input.documents import NoObject, location, object_of
from jaxpar.data.prepare.job import Job
from jaxpar.data.prepare.output.atomic_files import write_file
from jaxpar.data.prepare.output.chosen import left_out_file, unit_documents
from jaxpar.data.prepare.progress import metering
from jaxpar.data.prepare.selection.duplicates import duplicates, signature
from jaxpar.data.prepare.selection.filters import Filters
from jaxpar.data.prepare.workers import Report, run_tasks

REASONS = ("", "keep", "drop", "filter", "duplicate")
"""Reasons why a document is left out, by their code in a unit's file; it stays by the first."""
_NOT_JUDGED = 255
"""The code of a document without text."""


def choose_documents(job: Job, processes: int, console: Console) -> dict[str, int]:
    """Choose the documents of all units, for `chosen_documents`; returns how many are left out, by reason."""
    if not job.choice.screens:
        return {}
    job.screened_folder.mkdir(exist_ok=True)
    weights = [sum(part.weight for part in unit) for unit in job.units]
    missing = [unit for unit in range(len(weights)) if _read(job, unit) is None]
    done = sum(weights) - sum(weights[unit] for unit in missing)
    during: Report = lambda read: meter.read(*read)  # pyright: ignore[reportGeneralTypeIssues]
    with metering(console, "choosing documents", sum(weights), done) as meter:
        for unit in run_tasks(screen_maker, job, missing, processes, during):
            meter.advance(weights[unit], unit=unit)
    read = [screened for unit in range(len(weights)) if (screened := _read(job, unit)) is not None]
    alike = duplicates([signatures for _, signatures in read])
    left_out: Counter[str] = Counter()
    for unit, (reasons, signatures) in enumerate(read):
        mine, alike = alike[: len(signatures)], alike[len(signatures) :]
        reasons[reasons == 0] = np.where(mine, REASONS.index("duplicate"), 0)
        ordinals = np.flatnonzero((reasons > 0) & (reasons < len(REASONS)))
        left_out.update(REASONS[reason] for reason in reasons[ordinals].tolist())
        write_file(left_out_file(job, unit), _bytes(partial(np.save, arr=ordinals)), durable=False)
    return dict(left_out)


def screen_maker(job: Job, report: Report) -> Callable[[int], int]:
    """A function that writes the file of unit `i`; it reports as that of `unit_maker` does."""
    filters = Filters(job.choice)

    def make(unit: int) -> int:
        reasons: list[int] = []
        signatures: list[np.ndarray] = []
        for input, document in unit_documents(job, unit, lambda size: report((unit, size))):
            text = "" if document.broken else _document_text(job, document.text)
            if not text:
                reasons.append(_NOT_JUDGED)
                continue
            where = partial(location, job.inputs[input], document.offset)
            reasons.append(REASONS.index(filters.reason(text, where)))
            if not reasons[-1]:
                signatures.append(signature(text, job.choice.dedup))
        bands = np.stack(signatures or [signature("", job.choice.dedup)])[: len(signatures)]
        arrays = {"reasons": np.array(reasons, np.uint8), "signatures": bands}
        write_file(_file(job, unit), _bytes(lambda file: np.savez(file, **arrays)), durable=False)
        return unit

    return make


def _document_text(job: Job, document: str) -> str:
    """The text of a document: of a conversation what its messages say, a line between; empty where there is none."""
    if job.chat is None:
        return document
    try:
        return "\n".join(str(message.get("content") or "") for message in _messages(job, object_of(document)))
    except (NoObject, Unusable):
        return ""  # It is reported as broken when it is tokenized.


def _messages(job: Job, record: dict[str, object]) -> list[Message]:
    if job.answers == PAIRS_FORMAT:
        pair = pair_of(record)
        return [*pair.chosen.messages, *pair.rejected.messages[pair.prompt :]]
    if job.answers == LABELS_FORMAT:
        return labelled_of(record).conversation.messages
    return conversation_of(record).messages


def _read(job: Job, unit: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The reasons and signatures of a unit; None where they are not written, or damaged."""
    try:
        content = io.BytesIO(_file(job, unit).read_bytes())
        with np.load(content, allow_pickle=False) as arrays:
            return arrays["reasons"], arrays["signatures"]
    except (FileNotFoundError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _file(job: Job, unit: int) -> Path:
    return job.screened_folder / f"{unit:08d}.npz"


def _bytes(write: Callable[[io.BytesIO], None]) -> bytes:
    write(file := io.BytesIO())
    return file.getvalue()
