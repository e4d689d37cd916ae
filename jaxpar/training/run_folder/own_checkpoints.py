"""Whether the checkpoints in a run's folder are its own: they may be unmounted, moved, or another run's."""

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


def check_checkpoints(run: Path, config: Config) -> None:
    """Check that the checkpoints are the run's own. A run that has saved nothing yet needs none. Writes nothing.

    Args:
        run: the run's folder.
        config: the run's configuration.

    Raises:
        UserError: the records in `run` prove a save, and there is no checkpoint; or `checkpoints` is a symlink to
            nothing, or to the checkpoints of another run.
    """
    folder = run / CHECKPOINTS
    refusal = f"run.name is {config.run.name!r}: {folder}"
    remedy = f"choose another run.name or move {run} away to start over"
    if folder.is_symlink():
        try:
            target = folder.resolve(strict=True)
        except (OSError, RuntimeError):  # A loop of symlinks is a RuntimeError before Python 3.13.
            raise UserError(
                f"{refusal} is a symlink to {folder.readlink()}, which is not there; mount it, or let the symlink lead "
                f"to where this run's checkpoints are now, or {remedy}"
            ) from None
        if not target.is_relative_to(run.resolve()) and (owner := _other_owner(target, run, config)):
            raise UserError(
                f"{refusal} is a symlink to {target}, which belongs to {owner}; let it lead to this run's own "
                f"checkpoints, or {remedy}"
            )
    try:
        if _complete(folder):
            return
    except OSError:
        return  # The restore reports why it cannot be read.
    if save := _recorded_save(run):
        found = "has no complete checkpoint" if folder.exists() else "is missing"
        raise UserError(
            f"{refusal} {found}, but {save}; mount the checkpoints or move them back to continue the run, or {remedy}"
        )


def _complete(folder: Path) -> list[int]:
    """Steps whose checkpoint was complete once, ascending."""
    return [step for step in listed_steps(folder) if (step_folder(folder, step) / MANIFEST).exists()]


def _recorded_save(run: Path) -> str | None:
    """Words for the newest save that the run's records show; None where they show none."""
    newest, events = None, run / EVENTS_FILE
    if events.exists():
        for line in read_file(events, None).splitlines():
            if b'"saved"' in line and type(step := _saved(line)) is int:
                newest = step
    if newest is not None:
        return f"{EVENTS_FILE} states that the checkpoint of step {newest} was saved"
    # A run saves before it ends.
    summary = read_summary(run / SUMMARY_FILE) if (run / SUMMARY_FILE).exists() else None
    return (
        None
        if summary is None
        else f"{SUMMARY_FILE} states that the run ended, with a checkpoint, at step {summary['steps']}"
    )


def _saved(line: bytes) -> object:
    """The step of the save recorded in a line of `events.jsonl`; None where there is none, or it is damaged."""
    try:
        event = json.loads(line)
        return event["checkpoint"] if event["event"] == "saved" else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _other_owner(target: Path, run: Path, config: Config) -> str | None:
    """Words for the run other than `run` that the checkpoints in `target` belong to; None where they are its own.

    A folder next to another run's configuration is that run's. Elsewhere the newest checkpoint names its run.
    """
    for place in (target, target.parent):
        if (place / RUN_CONFIG).exists():
            return f"the run in {place}"
    saved = next(filter(None, (_saved_config(target, step) for step in reversed(_complete(target)))), None)
    if saved is None:
        return None
    name, parent = saved["run"]["name"], saved["run"]["dir"]
    if name != config.run.name:
        return f"run {name!r}"
    maker = Path(os.path.expanduser(parent)) / name
    if (maker / RUN_CONFIG).exists() and not maker.samefile(run) and (maker / CHECKPOINTS).resolve() == target:
        return f"the run in {maker}"
    try:
        changes = forbidden_changes(config_from_dict(saved), config)
    except UserError:
        return None  # Of another release: the restore reports what does not fit.
    return f"a run with another configuration ({'; '.join(changes)})" if changes else None


def _saved_config(folder: Path, step: int) -> dict[str, dict[str, Any]] | None:
    """The configuration in the facts of a checkpoint; None where they are damaged."""
    try:
        config = json.loads(read_file(step_folder(folder, step) / FACTS))["config"]
        return config if all(isinstance(config["run"][key], str) for key in ("name", "dir")) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
