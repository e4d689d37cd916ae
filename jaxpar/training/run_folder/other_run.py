"""Checkpoints by their path, and the state of another run with which a run begins (`run.init_optimizer`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxpar.checkpoint import Checkpointer
from jaxpar.checkpoint.facts import read_facts, saved_config
from jaxpar.checkpoint.folders import CHECKPOINTS, listed_steps, step_folder, step_name
from jaxpar.checkpoint.manifest import MANIFEST, newest_files
from jaxpar.config import Config, UserError, config_difference
from jaxpar.config.spelling import named
from jaxpar.layout.state import TrainState
from jaxpar.remote.cache import local_path
from jaxpar.runtime.carried import Carried
from jaxpar.training.run_folder.saves import read_state


def find_checkpoint(path: str | Path, key: str = "path") -> tuple[Path, int]:
    """The folder of checkpoints and the step of one: that at `path`, or the newest of the run there. JAX is not used.

    Raises:
        UserError: there is none.
    """
    folder = local_path(path, key, newest_files)
    if (folder / MANIFEST).exists():
        if not folder.name.isdigit() or folder.name != step_name(int(folder.name)):
            raise UserError(
                f"{key}: {named(folder)} is no name of a checkpoint; expected its step, as {step_name(100)}"
            )
        return folder.parent, int(folder.name)
    steps = [
        step
        for step in listed_steps(folder / CHECKPOINTS)
        if (step_folder(folder / CHECKPOINTS, step) / MANIFEST).exists()
    ]
    if not steps:
        raise UserError(
            f"{key}: {named(folder)} has no checkpoint; expected the folder of a run or of one of its checkpoints (the "
            "weights of other models begin a new run: run.init_from)"
        )
    return folder / CHECKPOINTS, steps[-1]


def state_of_other_run(
    config: Config, like: TrainState, carried: Mapping[str, Carried[Any]], report: Callable[[str], None]
) -> tuple[TrainState, str]:
    """The state of the run at `run.init_from`, laid out as `like`, and a sentence about it.

    Raises:
        UserError: there is no such run, or it has taken as many steps as this one is to take.
        CheckpointError: its state cannot be read, or is of another model or optimizer.
    """
    key = "run.init_optimizer"
    assert config.run.init_from is not None, "the configuration was checked"
    checkpoints, step = find_checkpoint(config.run.init_from, key)
    path = step_folder(checkpoints, step)
    facts = read_facts(path)
    if "data" not in facts:
        raise UserError(f"{key}: {named(path)} has the weights of a model alone; expected a run's, or false")
    if step >= config.run.steps:
        raise UserError(
            f"{key}: {named(path)} is of step {step}, from which the run goes on, and run.steps is {config.run.steps}; "
            "expected more"
        )
    checkpointer = Checkpointer(checkpoints, keep_last=1, keep_every=None, report=report)
    try:
        state, _ = read_state(checkpointer, step, like, carried, report)
    finally:
        checkpointer.close()
    changes = [line for line in config_difference(saved_config(facts, path), config) if not line.startswith("run.")]
    differs = f", with other settings: {'; '.join(changes)}" if changes else ""
    return state, f"The run goes on after step {step} of {path}, with its optimizer state{differs}."
