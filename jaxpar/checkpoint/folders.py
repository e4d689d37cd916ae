"""Names and fates of checkpoint folders: which steps are there, which may go, what is moved aside.

`<folder>/00000120` is the checkpoint of step 120. `00000120.broken-1` was in the way of a later save of that step; it
is never read and never deleted. `00000100.removing` is being deleted.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

REMOVING = ".removing"


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"{step:08d}"


def listed_steps(folder: Path) -> list[int]:
    """Steps with a folder of their own, whole or not, in ascending order."""
    if not folder.exists():
        return []
    names = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    numbers = [name for name in names if name.isascii() and name.isdigit()]
    return sorted(int(name) for name in numbers if name == step_folder(folder, int(name)).name)


def surplus(steps: list[int], keep_last: int, keep_every: int | None) -> list[int]:
    """The steps among `steps` (ascending) that may go: neither among the last `keep_last` nor kept for ever."""
    older = steps[:-keep_last]
    return [step for step in older if keep_every is None or step % keep_every != 0]


def move_aside(path: Path) -> Path:
    """Rename a broken checkpoint to the first free `<step>.broken-N`, and return that path."""
    number = 1
    while (aside := path.with_name(f"{path.name}.broken-{number}")).exists():
        number += 1
    path.rename(aside)
    return aside


def remove(path: Path) -> None:
    """Delete a checkpoint. It loses its name first, so a crash in between leaves no half of a checkpoint behind."""
    doomed = path.with_name(path.name + REMOVING)
    if doomed.exists():
        shutil.rmtree(doomed)
    path.rename(doomed)
    shutil.rmtree(doomed)


def remove_leftovers(folder: Path) -> None:
    """Finish deletions that a crash interrupted."""
    for path in folder.glob(f"*{REMOVING}"):
        shutil.rmtree(path)
