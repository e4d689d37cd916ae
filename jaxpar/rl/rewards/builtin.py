"""Rewards that come with jaxpar, as TRL has them: (prompts, completions, columns) to a number for each completion.

Columns are those of the prompts (`answer`, `pattern`, `length`, `schema`), lists with an entry for each completion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import did_you_mean, quoted
from jaxpar.config.user_code import is_user_code, load_function
from jaxpar.rl.rewards.json import (
    equal_json,
    is_json,
    is_schema_file,
    json_fields,
    json_length,
    parsed,
    schema,
    schema_reward,
    think,
)

type Reward = Callable[..., Sequence[float | None]]


def exact(prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **_: object) -> list[float]:
    """1 for the column `answer`, else 0; see `is_right`."""
    return [float(is_right(text, wanted)) for text, wanted in zip(completions, answer, strict=True)]


def is_right(text: str, wanted: Any) -> bool:
    """Whether a text is that of an answer without spaces around it; the same JSON where that is an object or a list."""
    if isinstance(wanted, Mapping | list):
        return equal_json(parsed(text), wanted)
    return text.strip() == str(wanted).strip()


def characters(prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **_: object) -> list[float]:
    """The share of characters that equal those of `answer` at the same index, of the longer text; the end is one."""
    return [_alike(text, str(wanted)) for text, wanted in zip(completions, answer, strict=True)]


def _alike(text: str, wanted: str) -> float:
    alike = sum(one == other for one, other in zip(text, wanted, strict=False)) + (len(text) == len(wanted))
    return alike / (max(len(text), len(wanted)) + 1)


def last_value(prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **_: object) -> list[float]:
    """1 where the last number of the text equals `answer`, else 0."""
    return [float(_parsed(text) == _parsed(str(wanted))) for text, wanted in zip(completions, answer, strict=True)]


def _parsed(text: str) -> float | None:
    without_separators = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    numbers = re.findall(r"(?<!\d)-?\d+(?:\.\d+)?", without_separators)
    return float(numbers[-1]) if numbers else None


def pattern(prompts: Sequence[str], completions: Sequence[str], pattern: Sequence[str], **_: object) -> list[float]:
    """1 where the regular expression of the column `pattern` matches the whole text, else 0."""
    return [
        float(re.fullmatch(one, text, re.DOTALL) is not None) for text, one in zip(completions, pattern, strict=True)
    ]


def length(prompts: Sequence[str], completions: Sequence[str], length: Sequence[float], **_: object) -> list[float]:
    """The number of characters or the column `length`, whichever is smaller, over the other."""
    pairs = [sorted((len(text), float(wanted))) for text, wanted in zip(completions, length, strict=True)]
    return [smaller / larger if larger else 1.0 for smaller, larger in pairs]


REWARDS: dict[str, Reward] = {
    "exact": exact,
    "characters": characters,
    "number": last_value,
    "pattern": pattern,
    "length": length,
    "json": is_json,
    "json_fields": json_fields,
    "json_length": json_length,
    "schema": schema,
    "think": think,
}
"""Functions by their name in `rl.rewards`."""


def check_reward(name: str) -> None:
    """Refuse a name of `rl.rewards` without running any code of the user's. Raises `UserError`."""
    if is_schema_file(name):
        schema_reward(name)
    elif not is_user_code(name) and name not in REWARDS:
        near = did_you_mean(name, REWARDS) or f"; there are {', '.join(REWARDS)}, FILE.json and FILE.py:NAME"
        raise UserError(f"rl.rewards: no reward is called {quoted(name)}{near}")


def reward_of(name: str) -> Reward:
    """The reward of a name of `rl.rewards`: of jaxpar, of a schema's file or of a user's. Raises `UserError`."""
    if is_user_code(name):
        return load_function(name, "rl.rewards")
    return schema_reward(name) if is_schema_file(name) else REWARDS[name]
