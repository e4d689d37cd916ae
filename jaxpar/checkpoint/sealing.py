"""Manifests that all processes of a job make and verify together, each reading its share of the files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import jax

from jaxpar.checkpoint import arrays, manifest, processes
from jaxpar.checkpoint.digests import Entry, file_entries
from jaxpar.checkpoint.errors import Damage, reason
from jaxpar.config.paths import flush_folder

SHARED = 1
"""Depth of the folders in which all processes write: the checkpoint's, and that of its state."""


def seal(folder: Path, step: int, local: Sequence[str], *, meeting: str) -> None:
    """Seal a checkpoint whose files are written. Every process calls this; any thread may.

    Each process makes the digests of the files that it wrote, and flushes them and their folders. Process 0 does so for
    the folders that all share, and the files that belong to no process (small ones, which the merge of the
    processes' parts leaves), and writes the manifest.

    Args:
        folder: the checkpoint's folder.
        step: its step.
        local: names of the files that this process wrote, relative to the folder; no name is in those of two processes.
        meeting: a name that no other call of the job has.

    Raises:
        OSError: a file cannot be read back, or the disk is full, read-only or broken, on this process or, on process
            0, on any.
    """
    failure: OSError | None = None
    try:
        answer = json.dumps({"files": file_entries(folder, local, flush=True)})
        _flush_folders(folder, [parent for parent in _parents(local) if len(parent.parts) > SHARED])
    except OSError as error:  # Process 0 must learn of it: it waits for this answer.
        failure, answer = error, json.dumps({"error": reason(error)})
    answers = processes.gather(answer, meeting=meeting, timeout_s=arrays.COMMIT_TIMEOUT_S)
    if failure is not None:
        raise failure
    if answers is None:
        return
    files: dict[str, Entry] = {}
    for answer in map(json.loads, answers):
        if "error" in answer:
            raise OSError(answer["error"])
        files |= {name: Entry(*entry) for name, entry in answer["files"].items()}
    left = [name for name in manifest.unsealed(folder) if name not in files]
    shared = {parent for parent in _parents(files) if len(parent.parts) <= SHARED}
    files |= file_entries(folder, left, flush=True)
    _flush_folders(folder, shared | _parents(left))
    manifest.seal(folder, step, files)


def _parents(names: Iterable[str]) -> set[PurePosixPath]:
    """The folders that hold these files, relative to the checkpoint's, which is one of them."""
    return {parent for name in names for parent in PurePosixPath(name).parents}


def _flush_folders(folder: Path, parents: Iterable[PurePosixPath]) -> None:
    for parent in parents:
        flush_folder(folder / parent)


def damage(folder: Path) -> str | None:
    """The reason why a checkpoint is not intact; None where it is. Every byte is read, by one of the processes.

    Collective: every process calls this on its main thread, and gets the same answer.
    """
    return processes.judged(json.dumps(_local_answer(folder)), _judge)


def _judge(texts: list[str]) -> str | None:
    answers = [json.loads(text) for text in texts]
    damaged = next((text for _, text in answers if text), None)
    if damaged is None and len({read for read, _ in answers}) > 1:
        return f"processes read different contents of its {manifest.MANIFEST}"
    return damaged


def _local_answer(folder: Path) -> tuple[str, str]:
    """Digest of the manifest as this process reads it, and the damage in its share of the files."""
    try:
        sealed = manifest.read(folder)
        share = manifest.divided(sealed.files, jax.process_count())[jax.process_index()]
        manifest.verify(folder, only=share)
    except Damage as damage:
        return "", str(damage)
    return hashlib.blake2b(sealed.text, digest_size=32).hexdigest(), ""
