"""Checkpoints by their path, and the state of another run with which a run begins (`run.init_optimizer`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxpar.checkpoint import Checkpointer
from jaxpar.checkpoint.facts import read_facts, saved_config
from jaxpar.checkpoint.folders import CHECKPOINTS, listed_steps, step_folder, step_name
from jaxpar.checkpoint.manifest import MANIFEST, is_sealed, newest_files
from jaxpar.config import Config, UserError, config_difference
from jaxpar.config.ramp import examples_before
from jaxpar.config.spelling import named
from jaxpar.data import batch_index
from jaxpar.data.opened import STREAM
from jaxpar.layout.state import TrainState
from jaxpar.remote.cache import local_path
from jaxpar.runtime.carried import Carried
from jaxpar.training.run_folder.saves import read_state

_EXPECTED = tuple(f"run.{key}:" for key in ("name", "dir", "steps", "init_from", "init_optimizer"))
"""Settings that differ in every run that goes on from another."""


def find_checkpoint(path: str | Path, key: str = "path") -> tuple[Path, int]:
    """The folder of checkpoints and the step of one: that at `path`, or the newest of the run there. JAX is not used.

    Raises:
        UserError: there is none.
    """
    folder = local_path(path, key, newest_files)
    if (folder / MANIFEST).exists():
        if not folder.name.isdigit() or folder.name != step_name(int(folder.name)):
            raise UserError(
                f"{key}: {named(folder)} is not a name of a checkpoint; expected its step, as {step_name(100)}"
            )
        return folder.parent, int(folder.name)
    steps = [step for step in listed_steps(folder / CHECKPOINTS) if is_sealed(folder, step)]
    if not steps:
        raise UserError(
            f"{key}: {named(folder)} has no checkpoint; expected the folder of a run or of one of its checkpoints (the "
            "weights of other models begin a new run: run.init_from)"
        )
    return folder / CHECKPOINTS, steps[-1]


class OtherRun(NamedTuple):
    """The state and the data of another run, for one that goes on from it."""

    state: TrainState
    facts: Mapping[str, Any] | None
    """Facts of its checkpoint, for the data to continue; None where the rows before it are others here."""
    text: str
    """Sentences that describe the other run."""


def state_of_other_run(
    config: Config,
    data: Mapping[str, object],
    like: TrainState,
    carried: Mapping[str, Carried[Any]],
    report: Callable[[str], None],
) -> OtherRun:
    """The run at `run.init_from`, its state laid out as `like`; `data` are the facts of the data here.

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
    other = saved_config(facts, path)
    changes = [line for line in config_difference(other, config) if not line.startswith(_EXPECTED)]
    differs = f", with other settings: {'; '.join(changes)}" if changes else ""
    text = f"The run goes on after step {step} of {path}, with its optimizer state{differs}."
    if _same_rows(config, other, step, facts, data):
        return OtherRun(state, facts, text)
    return OtherRun(
        state, None, f"{text} Its data does not go on: rows before that step differ in seed, number, length or kind."
    )


def _same_rows(config: Config, other: Config, step: int, facts: Mapping[str, Any], data: Mapping[str, object]) -> bool:
    """Whether the rows before a step of another run are those of this one, but for its mixture."""
    batch = batch_index(step, facts["left_out"])
    drawn = [
        (one.run.seed, one.data.source, one.data.sequence_length, examples_before(one.data, batch))
        for one in (config, other)
    ]
    kinds = [[each.get(key) is None for key in ("shuffle", "mixture", STREAM)] for each in (facts, data)]
    return drawn[0] == drawn[1] and kinds[0] == kinds[1]
