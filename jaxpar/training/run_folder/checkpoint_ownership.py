"""Whether the checkpoint folder belongs to this run: it may be unmounted, moved, or linked to another run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from jaxpar.checkpoint.facts import FACTS
from jaxpar.checkpoint.folders import CHECKPOINTS, listed_steps, step_folder
from jaxpar.checkpoint.manifest import MANIFEST
from jaxpar.config import Config, UserError
from jaxpar.config.paths import RUN_CONFIG
from jaxpar.config.reading.sections import config_from_dict
from jaxpar.config.reading.text_file import read_file
from jaxpar.observe.writers.event_log import EVENTS_FILE
from jaxpar.observe.writers.summary import SUMMARY_FILE, read_summary
from jaxpar.training.run_folder.same_run import forbidden_changes


def check_checkpoints(run: Path, config: Config, *, may_come: bool = False) -> None:
    """Check that the checkpoints belong to the run. A run that has saved nothing yet needs none. Writes nothing.

    Args:
        run: the run's folder.
        config: the run's configuration.
        may_come: whether missing checkpoints may still be fetched from `run.mirror`.

    Raises:
        UserError: the run's event log or summary says that a checkpoint was saved, and there is none; or `checkpoints`
            is a broken symlink, or a symlink to the checkpoints of another run.
    """
    folder = run / CHECKPOINTS
    subject = f"run.name is {config.run.name!r}: {folder}"
    remedy = f"choose another run.name or move {run} away to start over"
    if folder.is_symlink():
        try:
            target = folder.resolve(strict=True)
        except (OSError, RuntimeError):  # A loop of symlinks is a RuntimeError before Python 3.13.
            raise UserError(
                f"{subject} is a symlink to {folder.readlink()}, which cannot be resolved; mount it, or point "
                f"the symlink at this run's checkpoints, or {remedy}"
            ) from None
        if not target.is_relative_to(run.resolve()) and (owner := _other_run(target, run, config)):
            raise UserError(
                f"{subject} is a symlink to {target}, which belongs to {owner}; point it at this run's "
                f"checkpoints, or {remedy}"
            )
    try:
        if may_come or _committed_steps(folder):
            return
    except OSError:
        return  # The restore reports why it cannot be read.
    if save := _recorded_save(run):
        state = "has no complete checkpoint" if folder.exists() else "is missing"
        raise UserError(
            f"{subject} {state}, but {save}; mount the checkpoints or move them back to continue the run, or {remedy}"
        )


def _committed_steps(folder: Path) -> list[int]:
    """Steps whose checkpoint has a manifest, ascending: it was committed, though files may be lost since."""
    return [step for step in listed_steps(folder) if (step_folder(folder, step) / MANIFEST).exists()]


def _recorded_save(run: Path) -> str | None:
    """Description of the latest recorded save, for the error message; None where none is recorded."""
    last_saved, events = None, run / EVENTS_FILE
    if events.exists():
        for line in read_file(events, None).splitlines():
            if b'"saved"' in line and type(step := _step_of_save_event(line)) is int:
                last_saved = step
    if last_saved is not None:
        return f"{EVENTS_FILE} states that the checkpoint of step {last_saved} was saved"
    # The summary is written after the last checkpoint, so it implies one.
    summary = read_summary(run / SUMMARY_FILE) if (run / SUMMARY_FILE).exists() else None
    return (
        None
        if summary is None
        else f"{SUMMARY_FILE} states that the run ended, with a checkpoint, at step {summary['steps']}"
    )


def _step_of_save_event(line: bytes) -> object:
    """The step of the save recorded in a line of `events.jsonl`; None where there is none, or it is damaged."""
    try:
        event = json.loads(line)
        return event["checkpoint"] if event["event"] == "saved" else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _other_run(target: Path, run: Path, config: Config) -> str | None:
    """Description of the run, other than `run`, that the checkpoints in `target` belong to; None if there is none.

    If `target` or its parent has a run's configuration, they belong to that run. Otherwise the newest readable
    checkpoint decides: by the name of its run, the folder of that run, and the keys that a run may not change.
    """
    for candidate in (target, target.parent):
        if (candidate / RUN_CONFIG).exists():
            return f"the run in {candidate}"
    saved = next(filter(None, (_saved_config(target, step) for step in reversed(_committed_steps(target)))), None)
    if saved is None:
        return None
    name, runs_dir = saved["run"]["name"], saved["run"]["dir"]
    if name != config.run.name:
        return f"run {name!r}"
    source = Path(os.path.expanduser(runs_dir)) / name
    if (source / RUN_CONFIG).exists() and not source.samefile(run) and (source / CHECKPOINTS).resolve() == target:
        return f"the run in {source}"
    try:
        changes = forbidden_changes(config_from_dict(saved), config)
    except UserError:
        return None  # saved by another version of jaxpar: the restore reports what does not fit
    return f"a run with another configuration ({'; '.join(changes)})" if changes else None


def _saved_config(folder: Path, step: int) -> dict[str, dict[str, Any]] | None:
    """The configuration in a checkpoint's metadata; None where it is damaged."""
    try:
        config = json.loads(read_file(step_folder(folder, step) / FACTS))["config"]
        return config if all(isinstance(config["run"][key], str) for key in ("name", "dir")) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
