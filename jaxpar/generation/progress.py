"""How far an engine is: rows that wait for slots, tokens that the devices draw, and how long they took."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax

from jaxpar.generation.functions import Prefix
from jaxpar.generation.requests import Row
from jaxpar.generation.sampling import Drawn


@dataclass
class Speed:
    """How long rows took."""

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    new_tokens: int = 0
    new_seconds: float = 0.0
    steps: int = 0
    """Tokens that slots had time for: steps of decoding times slots."""
    used: int = 0
    """Tokens of these that a row had use for."""


class Flight(NamedTuple):
    """Tokens that the devices draw."""

    drawn: Drawn
    records: Mapping[str, jax.Array]
    rows: Mapping[int, Row]
    """By the index of the drawn token."""
    answers: int
    """Rows to each prompt; 0 for tokens that are no first ones."""


class Waiting(NamedTuple):
    """A row that was begun and waits for a slot: its prompt and answer, by their indices on a data rank."""

    prompt: int
    answer: int
    row: Row


class Begun(NamedTuple):
    """Prompts that were read."""

    prefix: Prefix
    length: int
    """To which they are padded."""
    waiting: Sequence[deque[Waiting]]
    """By data rank."""
