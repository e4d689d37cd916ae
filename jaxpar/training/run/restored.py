"""A run that goes on from one of its checkpoints, wherever that is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jaxpar.checkpoint import Checkpointer
from jaxpar.checkpoint.facts import check_run_facts, read_facts, saved_config
from jaxpar.checkpoint.folders import step_folder
from jaxpar.config import Config, UserError
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.config.spelling import named
from jaxpar.remote.cache import written_as
from jaxpar.training.run.run import Run
from jaxpar.training.run_folder.same_run import forbidden_changes
from jaxpar.training.run_folder.saves import read_state


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
