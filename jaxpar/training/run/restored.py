"""A run that goes on from one of its checkpoints, wherever that is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jaxpar.checkpoint import Checkpointer
from jaxpar.checkpoint.facts import check_run_facts, read_facts, saved_config
from jaxpar.checkpoint.folders import CHECKPOINTS, listed_steps, step_folder, step_name
from jaxpar.checkpoint.manifest import MANIFEST, newest_files
from jaxpar.config import Config, UserError
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.config.spelling import named
from jaxpar.remote.cache import local_path, written_as
from jaxpar.training.run.run import Run
from jaxpar.training.run_folder.same_run import forbidden_changes
from jaxpar.training.run_folder.saves import read_state


def find_checkpoint(path: str | Path) -> tuple[Path, int]:
    """The folder of checkpoints and the step of one: that at `path`, or the newest of the run there. JAX is not used.

    Raises:
        UserError: there is none.
    """
    folder = local_path(path, "path", newest_files)
    if (folder / MANIFEST).exists():
        if not folder.name.isdigit() or folder.name != step_name(int(folder.name)):
            raise UserError(f"path: {named(folder)} is no name of a checkpoint; expected its step, as {step_name(100)}")
        return folder.parent, int(folder.name)
    steps = [
        step
        for step in listed_steps(folder / CHECKPOINTS)
        if (step_folder(folder / CHECKPOINTS, step) / MANIFEST).exists()
    ]
    if not steps:
        raise UserError(
            f"path: {named(folder)} has no checkpoint; expected the folder of a run or of one of its checkpoints (the "
            "weights of other models begin a new run: run.init_from)"
        )
    return folder / CHECKPOINTS, steps[-1]


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
    """Where the run's folder is now, as keys of `run`; nothing if it was renamed."""
    folder = checkpoints.absolute().parent
    if written_as(folder) != str(folder):  # a copy from a store: nothing is written there
        return {}
    return {"dir": str(folder.parent)} if folder.name == config.run.name else {}
