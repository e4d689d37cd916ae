"""The facts of a run's checkpoints, and a checkpoint that is saved outside the training loop."""

from __future__ import annotations

from pathlib import Path

from jaxpar import __version__
from jaxpar.checkpoint.facts import CAME_FROM, CARRIED, SKIPPED_IN_ROW
from jaxpar.checkpoint.folders import listed_steps, step_folder
from jaxpar.checkpoint.processes import from_first
from jaxpar.config import UserError, config_to_dict
from jaxpar.config.spelling import quoted
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
    facts |= {"config": config_to_dict(run.config), "jaxpar": __version__} | run.models.facts
    return facts | ({CAME_FROM: list(run.came_from)} if run.came_from else {})


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
