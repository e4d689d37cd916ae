"""Prompts and their columns: of a task that comes with jaxpar, of a file of JSON lines, or of a user's function."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxpar.checkpoint.processes import run_on_process_0
from jaxpar.config.errors import UserError
from jaxpar.config.paths import is_name
from jaxpar.config.reading.text_file import read_text_file
from jaxpar.config.spelling import did_you_mean, quoted
from jaxpar.config.user_code import is_user_code, load_function
from jaxpar.data.chat.messages import Unusable, checked_messages
from jaxpar.remote.cache import local_path
from jaxpar.rl.tasks import TASKS

LONGEST_FILE = 2**30
"""Bytes of the largest file of prompts."""
ONE_OF = 16
"""One prompt in this many is for validation."""

type Record = Mapping[str, Any]
"""A `prompt`, a text or a list of messages, and columns for the rewards."""


@dataclass(frozen=True)
class Records:
    """Prompts to train on and to evaluate on."""

    train: Sequence[Record]
    validation: Sequence[Record]
    rewards: tuple[str, ...]
    """Rewards of the task, where the configuration names none."""
    name: str


def read_records(path: str, validation_path: str | None = None) -> Records:
    """The prompts that `data.path` names. Raises `UserError` where there are none, or one is wrong."""
    if path in TASKS:
        task = TASKS[path]
        every = _checked(task.records(), f"task {path}")
        rewards = task.rewards
    else:
        every, rewards = _read(path, "data.path"), ()
    if validation_path is not None:
        return Records(every, _read(validation_path, "data.validation_path"), rewards, path)
    train = [one for one in every if not _is_validation(one["prompt"])]
    validation = [one for one in every if _is_validation(one["prompt"])]
    return Records(train or every, validation if train else [], rewards, path)


def _is_validation(prompt: str | list[Any]) -> bool:
    """Whether a prompt is for validation: by a hash, so that it stays so whatever else is there."""
    prompt = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, allow_nan=True)
    return int(hashlib.sha256(prompt.encode()).hexdigest(), 16) % ONE_OF == 0


def _read(path: str, key: str) -> list[Record]:
    if is_user_code(path):
        try:
            records = run_on_process_0(load_function(path, key))  # what it returns may be random
        except (Exception, SystemExit) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{key}: {quoted(path)} failed ({type(error).__name__}: {error})") from error
        return _checked(records, f"{key}: {quoted(path)}")
    file = local_path(path, key)
    if not Path(file).is_file():
        near = did_you_mean(path, TASKS) or f"; the tasks are {', '.join(TASKS)}"
        raise UserError(f"{key}: {quoted(path)} is no file of prompts and no task{near}")
    lines = read_text_file(file, LONGEST_FILE, f"{key}: {quoted(path)}").split("\n")
    return _checked([_line(text, at, path, key) for at, text in enumerate(lines, 1) if text.strip()], key)


def _line(text: str, at: int, path: str, key: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{key}: line {at} of {quoted(path)} is not JSON ({error})") from None


def _check_prompt(prompt: str | list[Any], where: str) -> None:
    """Refuse a prompt that is neither UTF-8 nor messages of it."""
    try:
        messages = [] if isinstance(prompt, str) else checked_messages("prompt", prompt)
    except Unusable as error:
        raise UserError(f"{where}: {error}") from None
    for text in [prompt] if isinstance(prompt, str) else [str(one.get("content")) for one in messages]:
        if not is_name(text.replace("\0", "")):
            raise UserError(f"{where} has half of a surrogate pair in its prompt; expected UTF-8")


def _checked(records: Any, where: str) -> list[Record]:
    if not isinstance(records, Sequence) or isinstance(records, str):
        raise UserError(f"{where}: expected a list of mappings with a prompt, got {type(records).__name__}")
    for index, one in enumerate(records, 1):
        if not isinstance(one, Mapping) or not isinstance(one.get("prompt"), str | list) or not one["prompt"]:
            raise UserError(
                f"{where}: record {index} has no prompt; expected a mapping with `prompt`, a text or a list of messages"
            )
        _check_prompt(one["prompt"], f"{where}: record {index}")
        if taken := {"prompts", "completions"} & {*one}:
            raise UserError(f"{where}: record {index} has a column {taken.pop()}, which rewards get otherwise")
    if not records:
        raise UserError(f"{where}: it has no prompts; expected one at least")
    return list(records)
