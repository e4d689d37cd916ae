"""The checkpoints of a run: their facts, a save outside the training loop, and a run that goes on from one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from jaxpar import __version__
from jaxpar.checkpoint import Checkpointer
from jaxpar.checkpoint.facts import CAME_FROM, CARRIED, SKIPPED_IN_ROW, check_run_facts, read_facts, saved_config
from jaxpar.checkpoint.folders import listed_steps, step_folder
from jaxpar.checkpoint.processes import gather, run_on_process_0
from jaxpar.config import Config, UserError, config_to_dict
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.config.spelling import named, quoted
from jaxpar.config.strict_json import json_text
from jaxpar.data.opened import STREAM
from jaxpar.layout.state import without_frozen
from jaxpar.observe.events import Listener
from jaxpar.remote.cache import source_url
from jaxpar.training.run.progress import Progress
from jaxpar.training.run.run import Run
from jaxpar.training.run_folder.folder import RunFolder
from jaxpar.training.run_folder.same_run import forbidden_changes
from jaxpar.training.run_folder.saves import Saves, read_state


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
        run_on_process_0(folder.claim)
        run_on_process_0(lambda: _check_newest(folder, step))
        run_on_process_0(lambda: folder.write(run.plan, step))
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


def config_of_checkpoint(checkpoints: Path, step: int, overrides: Sequence[str]) -> Config:
    """The configuration of the run that saved a checkpoint, with overrides that leave it the same run.

    Raises:
        UserError: the checkpoint has weights alone, or the overrides make it another run.
    """
    checkpoint = step_folder(checkpoints, step)
    facts = read_facts(checkpoint)
    if "data" not in facts:
        raise UserError(
            f"path: {named(checkpoint)} has the weights of a model, and not the state of a run; expected a run's, or "
            "a new run that begins with them (run.init_from)"
        )
    check_run_facts(checkpoint, facts)
    saved = saved_config(facts, checkpoint)
    config = with_overrides(saved, overrides)
    if changes := forbidden_changes(saved, config):
        raise UserError(
            f"overrides: {'; '.join(changes)} makes another run than that of {named(checkpoint)}; expected a new one, "
            "which begins with its weights (run.init_from)"
        )
    return config


def restore(run: Run, checkpoints: Path, step: int) -> dict[str, object]:
    """Continue a run from one of its checkpoints: weights, optimizer state, place in its data. Returns its facts."""
    notes: list[str] = []
    checkpointer = Checkpointer(checkpoints, keep_last=1, keep_every=None, report=notes.append)
    try:
        state, facts = read_state(checkpointer, step, run.saved.abstract, run.layout.carried, notes.append)
    finally:
        checkpointer.close()
    run.continue_from(state, facts)
    return facts


def folder_of_run(checkpoints: Path, config: Config) -> dict[str, object]:
    """Keys of `run` for the folder's current path; nothing if it was renamed."""
    folder = checkpoints.absolute().parent
    if source_url(folder) != str(folder):  # a copy from a store: nothing is written there
        return {}
    return {"dir": str(folder.parent)} if folder.name == config.run.name else {}
