"""Retention of checkpoints: the complete ones, and the deletion of old ones. It runs on process 0 only."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from jaxpar.checkpoint import folders, manifest
from jaxpar.checkpoint.errors import CheckpointError, Damage
from jaxpar.checkpoint.facts import read_facts, skipped_in_row


def complete(folder: Path, last: int) -> dict[int, int]:
    """Steps up to `last` with a complete checkpoint, ascending, to how many steps were skipped before it."""
    checkpoints = {}
    for step in folders.listed_steps(folder):
        if step > last:
            break
        path = folders.step_folder(folder, step)
        try:
            manifest.verify_sizes(path)
            checkpoints[step] = skipped_in_row(read_facts(path))
        except (Damage, CheckpointError):
            continue
    return checkpoints


def last_healthy(folder: Path, last: int) -> int | None:
    """The newest step up to `last` whose checkpoint is complete and healthy; None where there is none."""
    return max((step for step, skipped in complete(folder, last).items() if not skipped), default=None)


def prune(folder: Path, step: int, keep_last: int, keep_every: int | None, spared: int | None = None) -> None:
    """Delete what is no longer kept, now that the checkpoint of `step` is complete.

    Broken checkpoints do not count and are left alone, as is everything newer than `step`: after a corrupt newest
    checkpoint was skipped, the steps being saved are older than it. The step `spared` stays until a later call.

    Raises:
        OSError: something could not be deleted; everything else is.
    """
    with ExitStack() as deletions:  # It calls all of them: one that fails, as on NFS, must not fill the disk.
        for old in folders.deletable(complete(folder, step), keep_last, keep_every):
            if old != spared:
                deletions.callback(folders.remove, folders.step_folder(folder, old))
        deletions.callback(folders.remove_leftovers, folder)
