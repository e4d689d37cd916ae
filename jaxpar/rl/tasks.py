"""Small tasks with rewards, to try reinforcement on a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Task:
    """Prompts with the answer that is wanted."""

    records: Callable[[], list[dict[str, Any]]]
    alphabet: str | None = None
    """Characters that are tokens; None for bytes."""
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


NAMES = ("Ada", "Amir", "Bela", "Chen", "Dora", "Emil", "Fay", "Hana", "Igor", "Joan", "Kofi", "Lea", "Mia", "Omar",
         "Pia", "Ravi")  # fmt: skip
CITIES = ("Accra", "Bern", "Cusco", "Delhi", "Graz", "Kyoto", "Lima", "Oslo", "Paris", "Quito", "Rome", "Tunis")
AGES = (18, 25, 31, 42, 57, 63, 74, 86)


def _people() -> list[dict[str, Any]]:
    """`Oslo, Mia, 34`: an object with name, age and city, in whatever order they come, after the order as a thought.

    Demonstrations are of mixed quality: two in five write the age as a text, two in five name the city `town`.
    """
    draw, records = np.random.default_rng(0), {}
    for _ in range(4000):
        person = {"name": str(draw.choice(NAMES)), "age": int(draw.choice(AGES)), "city": str(draw.choice(CITIES))}
        order = [str(key) for key in draw.permutation([*person])]
        prompt = ", ".join(str(person[key]) for key in order) + "\n"
        name, age, city = person.values()
        shown = [person, {"name": name, "age": str(age), "city": city}, {"name": name, "age": age, "town": city}]
        written = json.dumps(shown[draw.choice(3, p=(0.2, 0.4, 0.4))], separators=(",", ":"), allow_nan=False)
        completion = f"<think>{' '.join(order)}</think><answer>{written}</answer>"
        records[prompt] = {"prompt": prompt, "answer": person, "completion": completion}
    return [*records.values()]


def _guess() -> list[dict[str, Any]]:
    """`29`: a number from 2 to 9 is to be guessed in conversation (`rl.environment: guess`)."""
    ranges = [(low, high) for low, high in product(range(1, 10), repeat=2) if low < high]
    return [
        {"prompt": f"{low}{high}", "answer": str(answer)} for low, high in ranges for answer in range(low, high + 1)
    ]


TASKS: dict[str, Task] = {
    "digits": Task(_digits, "0123456789:,="),
    "guess": Task(_guess, "123456789<>?", rewards=()),
    "json": Task(_people, rewards=("json_fields", "json_length", "think")),
}
"""Tasks by their name in `data.path`."""
