"""Answers that the model drew, and the rows of a batch that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxpar.layers.experts.routing import NO_EXPERT
from jaxpar.rl.prompts import Prompt
from jaxpar.runtime.batch import Field

PER_TOKEN = ("mask", "advantage", "weight", "before", "sampled", "reference")
"""Fields of a batch with a number for each token that the model drew, at the token before it."""


@dataclass(frozen=True)
class Answer:
    """Tokens that follow a prompt, their end included, with the log-probability that each was drawn with.

    Between the turns of a conversation stand observations, which the model did not draw: their log-probabilities are 0.
    """

    prompt: Prompt
    tokens: tuple[int, ...]
    log_probabilities: Float[np.ndarray, " tokens"]
    ended: bool
    """Whether its last token is the end; else the limit of tokens ended it."""
    turns: tuple[tuple[int, int], ...] | None = None
    """First token and end of each of the model's turns; None for one that has all tokens."""
    reward: float = 0.0
    """Reward of the environment; NaN where that failed."""
    without_room: bool = False
    """Whether a conversation ended since the limit of tokens has no room for what is said next."""
    routing: Int[np.ndarray, "tokens layers choices"] | None = None
    """The experts of each token of the prompt and the answer but the last, where the step replays them."""

    @property
    def drawn(self) -> Bool[np.ndarray, " tokens"]:
        """Whether the model drew each token."""
        drawn = np.full(len(self.tokens), self.turns is None)
        for first, end in self.turns or ():
            drawn[first:end] = True
        return drawn

    @property
    def truncated(self) -> bool:
        """Whether the limit of tokens ended it, or the conversation."""
        return self.without_room or not self.ended

    @property
    def size(self) -> int:
        """Tokens that the model drew."""
        return int(self.drawn.sum())

    def text_tokens(self) -> tuple[int, ...]:
        """The tokens of the last turn without the end."""
        tokens = self.tokens[self.turns[-1][0] :] if self.turns else self.tokens
        return tokens[:-1] if self.ended else tokens


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


def answer_rows(
    learned: Sequence[Learned], rows: int, length: int, routing: Field | None = None
) -> dict[str, np.ndarray]:
    """The arrays of a batch [row, token]: each answer with its prompt is a document; they fill one row after another.
    With the experts of tokens where the step reads the field `routing`.

    Every row has room for `length // longest` of them, which is enough for all: `check_room`.
    """
    integers: dict[str, np.ndarray] = {
        name: np.zeros((rows, length), np.int32) for name in ("tokens", "labels", "segments", "positions")
    }
    floats = {name: np.zeros((rows, length), np.float32) for name in PER_TOKEN}
    if routing is not None:
        integers[routing.name] = np.full(routing.shape(rows, length), NO_EXPERT, np.int32)
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
        if routing is not None:
            assert one.answer.routing is not None, "the sampler records the experts that the step reads"
            integers[routing.name][here] = one.answer.routing
        before = np.nan if one.before is None else one.before
        values = 1, one.advantage, one.weight, before, one.answer.log_probabilities, one.reference
        for name, value in zip(PER_TOKEN, values, strict=True):
            floats[name][answer] = np.where(one.answer.drawn, value, 0)
        at += size
    indices = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    return integers | floats | {"indices": indices}
