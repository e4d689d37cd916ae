"""Answers that the model drew, and the rows of a batch that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxpar.rl.prompts import Prompt

PER_TOKEN = ("mask", "advantage", "weight", "before", "sampled", "reference")
"""Fields of a batch with a number for each token of an answer, at the token before it."""


@dataclass(frozen=True)
class Answer:
    """Tokens that follow a prompt, their end included, with the log-probability that each was drawn with."""

    prompt: Prompt
    tokens: tuple[int, ...]
    log_probabilities: Float[np.ndarray, " tokens"]
    ended: bool
    """Whether its last token is the end; else the limit of tokens ended it."""

    def text_tokens(self) -> tuple[int, ...]:
        """Its tokens without the end."""
        return self.tokens[:-1] if self.ended else self.tokens


@dataclass(frozen=True)
class Learned:
    """An answer that a step learns from."""

    answer: Answer
    advantage: float
    weight: float
    reference: Float[np.ndarray, " tokens"]
    """The reference's log-probability of each token; zeros without a reference."""
    before: Float[np.ndarray, " tokens"] | None = None
    """The model's log-probability of each token before the updates from this answer; None where this is the first."""


def answer_rows(learned: Sequence[Learned], rows: int, length: int) -> dict[str, np.ndarray]:
    """The arrays of a batch [row, token]: each answer with its prompt is a document; they fill one row after another.

    Every row has room for `length // longest` of them, which is enough for all: `check_room`.
    """
    integers = {name: np.zeros((rows, length), np.int32) for name in ("tokens", "labels", "segments", "positions")}
    floats = {name: np.zeros((rows, length), np.float32) for name in PER_TOKEN}
    row = at = document = 0
    for one in learned:
        text = np.array((*one.answer.prompt.tokens, *one.answer.tokens), np.int32)
        size, first = len(text) - 1, len(one.answer.prompt.tokens) - 1
        if at + size > length:
            row, at, document = row + 1, 0, 0
        here, answer = (row, slice(at, at + size)), (row, slice(at + first, at + size))
        document += 1
        integers["tokens"][here], integers["labels"][here] = text[:-1], text[1:]
        integers["segments"][here], integers["positions"][here] = document, np.arange(size)
        before = np.nan if one.before is None else one.before
        values = 1, one.advantage, one.weight, before, one.answer.log_probabilities, one.reference
        for name, value in zip(PER_TOKEN, values, strict=True):
            floats[name][answer] = value
        at += size
    indices = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    return integers | floats | {"indices": indices}
