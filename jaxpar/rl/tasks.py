"""Small tasks with rewards, to try reinforcement on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from string import ascii_lowercase

import numpy as np


@dataclass(frozen=True)
class Task:
    """Prompts with the answer that is wanted, in few characters."""

    records: Callable[[], list[dict[str, str]]]
    alphabet: str
    rewards: tuple[str, ...] = ("characters",)


def _digits() -> list[dict[str, str]]:
    """`ab:max,n=`: continue a, b, a + b, ... by n digits, each the sum of the two before it modulo max."""
    records = []
    for most, n in product(range(3, 7), range(1, 7)):
        for first, second in product(range(most), repeat=2):
            digits = [first, second]
            while len(digits) < n + 2:
                digits.append((digits[-1] + digits[-2]) % most)
            text = "".join(map(str, digits))
            records.append({"prompt": f"{text[:2]}:{most},{n}=", "answer": text[2:]})
    return records


def _reverse() -> list[dict[str, str]]:
    """`abc=`: the letters in reverse order."""
    draw, letters = np.random.default_rng(0), list(ascii_lowercase[:8])
    words = {"".join(draw.choice(letters, size)): None for size in draw.integers(1, 7, 4000)}
    return [{"prompt": f"{word}=", "answer": word[::-1]} for word in words]


TASKS: dict[str, Task] = {
    "digits": Task(_digits, "0123456789:,="),
    "reverse": Task(_reverse, ascii_lowercase[:8] + "="),
}
"""By the name that `data.path` has."""
