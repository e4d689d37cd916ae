"""The facts of a run's checkpoints, the clock that says when to save, and a save outside the training loop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from jaxpar import __version__
from jaxpar.checkpoint.facts import CAME_FROM, CARRIED, SKIPPED_IN_ROW
from jaxpar.checkpoint.folders import listed_steps, step_folder
from jaxpar.checkpoint.processes import from_first, gather
from jaxpar.config import UserError, config_to_dict
from jaxpar.config.spelling import quoted
from jaxpar.config.strict_json import json_text
from jaxpar.data.opened import STREAM
from jaxpar.layout.state import without_frozen
from jaxpar.observe.events import Listener
from jaxpar.training.run.progress import Progress
from jaxpar.training.run.run import Run
from jaxpar.training.run_folder.folder import RunFolder
from jaxpar.training.run_folder.saves import Saves


def checkpoint_facts(run: Run, progress: Progress, skipped_in_row: int) -> dict[str, object]:
    """The facts of a checkpoint of `run` as it is now, but for those of the anomaly monitor.

    Args:
        run: after its last step.
        progress: its counters up to that step.
        skipped_in_row: how many of the last steps were skipped.
    """
    facts = progress.facts() | {SKIPPED_IN_ROW: skipped_in_row, "left_out": list(run.left_out)}
    facts |= {CARRIED: {name: kind.saved_as for name, kind in run.layout.carried.items()}}
    facts |= run.data.facts | {"data": run.data.description}
    facts |= {"config": config_to_dict(run.config), "jaxpar": __version__} | run.models.facts | run.facts()
    facts |= _positions(run)
    return facts | ({CAME_FROM: list(run.came_from)} if run.came_from else {})


def _positions(run: Run) -> dict[str, object]:
    """The positions of the data of all processes, where it has some; collective."""
    positions = run.data.positions(run.next_example)
    if positions is None:
        return {}
    every = map(json.loads, gather(json_text(positions["lanes"])) or [])
    lanes = dict(sorted((int(lane), position) for each in every for lane, position in each.items()))
    return {STREAM: positions | {"lanes": {str(lane): position for lane, position in lanes.items()}}}


def save_now(run: Run, progress: Progress, skipped_in_row: int) -> Path:
    """Save a checkpoint of `run` in its folder, and wait until it is complete; returns the checkpoint's folder.

    Raises:
        UserError: no step was taken, or the folder has a checkpoint of that step or a later one, belongs to another
            run, is in use, or cannot be written.
        CheckpointError: the checkpoint cannot be written.
    """
    step, folder = run.steps_done, RunFolder(run.config)
    if not step:
        raise UserError("save: expected a step first; a run without one begins again from its configuration")
    saves = Saves(folder.checkpoints, run.config.checkpoint, Listener())
    try:
        from_first(folder.claim)
        from_first(lambda: _check_newest(folder, step))
        from_first(lambda: folder.write(run.plan, step))
        facts = checkpoint_facts(run, progress, skipped_in_row)
        saves.begin(step, run.saved.outgoing(without_frozen(run.state)), facts, must=True)
        saves.finish()
    finally:
        try:
            saves.close()
        finally:
            folder.release()
    return step_folder(folder.checkpoints, step)


def _check_newest(folder: RunFolder, step: int) -> None:
    newest = max(listed_steps(folder.checkpoints), default=0)
    if newest >= step:
        raise UserError(
            f"run.name is {quoted(folder.config.run.name)}: {folder.path} has a checkpoint of step {newest}, and this "
            f"is step {step}; expected to go on from that one (Trainer.from_checkpoint), or another run.name"
        )


LOOK_S = 60.0
"""Process 0 looks at its clock about this often: a look is a collective, and the next step waits for it."""


class SaveClock:
    """Decides after which steps a save is due (`checkpoint.every_minutes`), alike on all processes.

    Clocks differ between processes, so only that of process 0 counts. At a look it decides for all, and also after
    which step the next look comes; steps in between cost nothing.

    Args:
        minutes: between two saves; None or 0 turns this off.
        clock: in seconds.
    """

    def __init__(self, minutes: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = 60 * minutes if minutes else None
        self._clock = clock
        self.start(1)

    def start(self, first: int) -> None:
        """The next step is `first`, and the minutes to the first save begin."""
        self.saved()
        self.restart(first)

    def restart(self, first: int) -> None:
        """The next step is `first`, after which steps take longer or shorter than before."""
        # The first look comes after the second step, since the first is slower than most.
        self._look = first + 1
        self._seen, self._seen_at = first - 1, self._clock()

    def looks(self, step: int) -> bool:
        """Whether `due` must be called after `step`; the same on all processes."""
        return self._every_s is not None and step >= self._look

    def due(self, step: int) -> bool:
        """Whether a save is due after `step`; without a look at `step`, it is not. Collective at a look."""
        if not self.looks(step):
            return False
        due, self._look = from_first(lambda: self._decide(step))
        return due

    def saved(self) -> None:
        """A save has begun, for whichever reason."""
        self._saved_at = self._clock()

    def _decide(self, step: int) -> tuple[bool, int]:
        """On process 0: whether a save is due after `step`, and the step of the next look."""
        assert self._every_s is not None, "looks says no"
        now = self._clock()
        steps_per_s = (step - self._seen) / max(now - self._seen_at, 1e-9)
        self._seen, self._seen_at = step, now
        left_s = self._saved_at + self._every_s - now
        wait_s = min(LOOK_S, left_s if left_s > 0 else self._every_s)
        return left_s <= 0, step + max(1, round(wait_s * steps_per_s))
