"""Prompts to continue, and the rows that continue them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int

from jaxpar.config.errors import UserError
from jaxpar.config.schema import ModelConfig
from jaxpar.generation.sampling import LIKELIEST, Sampling
from jaxpar.pages.units import plural

type Records = Mapping[str, np.ndarray]
"""Records by the name of a field, [token, layer, ...]."""


@dataclass(frozen=True)
class Continuation:
    """Tokens generated after one prompt."""

    tokens: Int[np.ndarray, " tokens"]
    """Without the prompt, and without the token that ended it."""
    log_probabilities: np.ndarray
    """Log-probabilities of `tokens`, in nats, by the model itself: without filters, at temperature 1 or, under
    `Sampling.tempered`, at that of the draws."""
    ended: bool
    """Whether the model, or the caller, ended it; else the limit of tokens did."""
    recorded: Records
    """Records, by the name of the batch field that replays them, of the tokens that the model has read, the prompt
    and all but the last that was drawn. Empty without `records`."""
    ending: float | None = None
    """Log-probability of the token of `stop` that ended it, if one did."""


@dataclass(eq=False)
class Request:
    """A prompt to continue."""

    prompt: Sequence[int]
    tokens: int
    """Largest number of new tokens in each answer, at least 1."""
    sampling: Sampling = LIKELIEST
    seed: int = 0
    stream: int = 0
    """The stream of draws of the first answer; a draw depends on the seed, the stream and the length of the row."""
    answers: int = 1
    """Rows that continue the prompt, whose forward is run once."""
    stop: Collection[int] = ()
    """Ids that end a row, and are not part of it."""
    on_token: Callable[[int, int], bool] | None = None
    """Called with the index of an answer and each new token; True ends the answer after that token."""
    adapter: int = -1
    """Index of its adapter among those of the weights; -1 for the model without one."""
    rows: list[Row] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = [Row(self, index) for index in range(self.answers)]

    def draws(self) -> list[tuple[float, ...]]:
        """The settings of each answer's draws, in the order of `Draws`."""
        one = self.sampling
        rest = one.temperature, one.repetition_penalty, one.top_k, one.top_p, one.min_p, one.tempered, self.adapter
        return [(self.seed % 2**32, self.stream + index, *rest) for index in range(self.answers)]

    def check(self, model: ModelConfig, name: str) -> None:
        """Raise `UserError` for a prompt that is empty, has an unknown token, or is too long for learned positions."""
        assert model.vocab is not None, "the vocabulary is known once the model is"
        if not len(self.prompt):
            raise UserError(f"{name}: expected at least one token, got none")
        wrong = next((token for token in self.prompt if not 0 <= token < model.vocab), None)
        if wrong is not None:
            raise UserError(
                f"{name}: token {wrong} is not of a vocabulary of {model.vocab}; expected the model's tokens"
            )
        if model.position == "learned" and len(self.prompt) + self.tokens > model.max_positions:
            raise UserError(
                f"{name}: {plural(len(self.prompt), 'token')} and {self.tokens} new are more than the learned "
                f"positions, model.max_positions ({model.max_positions})"
            )


@dataclass(eq=False)
class Row:
    """An answer as it grows."""

    request: Request
    index: int
    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    pieces: list[Records] = field(default_factory=list)
    issued: int = 0
    """Tokens that were drawn, read or not."""
    done: bool = False
    ended: bool = False
    finite: bool = True
    """Whether the log-probabilities of all its tokens are; one that is not ends it."""
    ending: tuple[int, float] | None = None
    """The token of `stop` that ended it, with its log-probability."""

    @property
    def full(self) -> bool:
        """Whether nothing more is to be drawn."""
        return self.done or self.issued >= self.request.tokens

    def take(self, token: int, log_probability: float) -> None:
        """The next token, read."""
        request = self.request
        if not np.isfinite(log_probability):
            self.finite, self.done = False, True
        elif token in request.stop:
            self.ended = self.done = True
            self.ending = token, log_probability
        else:
            self.tokens.append(token)
            self.log_probabilities.append(log_probability)
            self.ended = request.on_token is not None and request.on_token(self.index, token)
            self.done = self.ended or len(self.tokens) == request.tokens

    def continuation(self) -> Continuation:
        """The tokens so far."""
        pieces = self.pieces
        records = {name: np.concatenate([piece[name] for piece in pieces]) for name in (pieces[0] if pieces else ())}
        return Continuation(
            np.array(self.tokens, np.int32),
            np.array(self.log_probabilities),
            self.ended,
            records,
            None if self.ending is None else self.ending[1],
        )


@dataclass
class Speed:
    """Tokens of rows, and the seconds that they took."""

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    new_tokens: int = 0
    new_seconds: float = 0.0
    steps: int = 0
    """Tokens that slots had time for: steps of decoding times slots."""
    used: int = 0
    """Tokens of these that a row had use for."""
    handed_bytes: int = 0
    """Bytes of prompts' caches that the devices of slots got from those that read prompts."""
