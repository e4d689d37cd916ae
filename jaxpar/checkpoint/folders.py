"""Folders of checkpoints: which steps exist, which may be deleted, which are renamed.

`<folder>/00000120` is the checkpoint of step 120. `00000120.broken-1` was renamed because it was broken and step 120
was saved again; it is never read and never deleted. `00000100.removing` is being deleted.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

CHECKPOINTS = "checkpoints"
"""Name of the folder of checkpoints, in a run's folder and in a converted model's."""
REMOVING = ".removing"


def step_name(step: int) -> str:
    """The name of the folder of a step's checkpoint."""
    return f"{step:08d}"


def step_folder(folder: Path, step: int) -> Path:
    """The folder of a step's checkpoint."""
    return folder / step_name(step)


def listed_steps(folder: Path) -> list[int]:
    """Steps that have a folder, complete or not, in ascending order."""
    if not folder.exists():
        return []
    names = [entry.name for entry in os.scandir(folder) if _is_folder(entry)]
    numbers = [name for name in names if name.isascii() and name.isdigit()]
    return sorted(int(name) for name in numbers if name == step_name(int(name)))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether `entry` is a folder or a symlink to one; a circular or dangling symlink is not."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def deletable(skipped: Mapping[int, int], keep_last: int, keep_every: int | None) -> list[int]:
    """Steps of the checkpoints that may be deleted once the last one of `skipped` is complete.

    The last `keep_last` of all, the last `keep_last` healthy ones, and the permanent ones stay. If the last one is not
    healthy, none may be deleted.

    Args:
        skipped: for each step with a checkpoint, ascending, the number of consecutive updates that were skipped just
            before it; a checkpoint is healthy if that is 0.
        keep_last: as in `Checkpointer`.
        keep_every: as in `Checkpointer`.
    """
    steps = list(skipped)
    healthy = [step for step in steps if not skipped[step]]
    if not steps or skipped[steps[-1]]:
        return []
    retained = {*steps[-keep_last:], *healthy[-keep_last:]}
    return [step for step in steps if step not in retained and (keep_every is None or step % keep_every != 0)]


def move_aside(path: Path) -> Path:
    """Rename a broken checkpoint to the first free `<step>.broken-N`, and return that path."""
    suffix = 1
    while (aside := path.with_name(f"{path.name}.broken-{suffix}")).exists():
        suffix += 1
    path.rename(aside)
    return aside


def remove(path: Path) -> None:
    """Delete a checkpoint. It is renamed first, so a crash in between leaves no partial checkpoint."""
    doomed = path.with_name(path.name + REMOVING)
    if doomed.exists():
        shutil.rmtree(doomed)
    path.rename(doomed)
    shutil.rmtree(doomed)


def remove_leftovers(folder: Path) -> None:
    """Finish deletions that a crash interrupted; an error in one does not prevent the others."""
    with ExitStack() as deletions:
        for path in folder.glob(f"*{REMOVING}"):
            deletions.callback(shutil.rmtree, path)
