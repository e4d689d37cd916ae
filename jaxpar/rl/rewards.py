"""Rewards that come with jaxpar, as TRL has them: (prompts, completions, columns) to a number for each completion.

Columns are those of the prompts: `answer`, `pattern`, `length`, each a list with an entry for each completion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

type Reward = Callable[..., Sequence[float | None]]


def exact(prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **_: object) -> list[float]:
    """1 for the text of the column `answer` without spaces around it, else 0."""
    return [float(text.strip() == str(wanted).strip()) for text, wanted in zip(completions, answer, strict=True)]


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


REWARDS: dict[str, Reward] = {"exact": exact, "characters": characters, "number": last_value, "pattern": pattern}
"""By the name that `rl.rewards` has."""
