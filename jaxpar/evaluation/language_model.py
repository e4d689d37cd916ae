"""A model and its tokenizer, asked about texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted
from jaxpar.evaluation.windows import Window, windows
from jaxpar.generation.generator import Generator
from jaxpar.generation.placed_model import PlacedModel
from jaxpar.generation.sampling import LIKELIEST, NotFinite, Sampling
from jaxpar.generation.scorer import Scorer
from jaxpar.generation.text import Stop
from jaxpar.interop.sources.model_text import ModelText
from jaxpar.pages.units import plural


class Likelihood(NamedTuple):
    """Likelihood of a continuation."""

    total: float
    """Log-probability of all its tokens, in nats."""
    greedy: bool
    """Whether the likeliest tokens are its own."""


@dataclass(frozen=True)
class LanguageModel:
    """Texts in, log-probabilities and texts out. Tokens and windows are those of lm-evaluation-harness."""

    model: PlacedModel
    text: ModelText
    length: int
    """Tokens that a forward reads at most."""

    @cached_property
    def scorer(self) -> Scorer:
        """The scores of tokens."""
        return Scorer(self.model)

    @cached_property
    def generator(self) -> Generator:
        """The generator that continues prompts."""
        return Generator(self.model.config, self.model.mesh, self.model.weights, mixing=self.model.mixing)

    @property
    def begin(self) -> int:
        """The token before a text that begins a document. Raises `UserError` if the tokenizer has none."""
        if self.text.begin is None:
            raise UserError(
                f"{self.text.name} has no token for the beginning or end of a document, and one must come before the "
                "first token of a text"
            )
        return self.text.begin

    def encoded_pair(self, context: str, continuation: str) -> Window:
        """The tokens of a continuation, and those before it.

        White space at the end of the context is part of the continuation, and the two are encoded as one text.
        """
        if not context:
            return Window([self.begin], self._encode_without_begin(continuation))
        before = self.text.encode_start(context.rstrip())
        return Window(before or [self.begin], self.text.encode_start(context + continuation)[len(before) :])

    def _encode_without_begin(self, text: str) -> list[int]:
        """The tokens of a text behind `begin`, which is not one of them where the text has it already."""
        tokens = self.text.encode(text)
        return tokens[1:] if tokens[:1] == [self.begin] else tokens

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """Likelihood of each (context, continuation); a context that is too long is truncated from the left.

        Raises:
            UserError: a continuation has no token, or more than the model reads.
        """
        encoded = [self.encoded_pair(*pair) for pair in pairs]
        for (_, continuation), (_, scored) in zip(pairs, encoded, strict=True):
            if not 0 < len(scored) <= self.length:
                raise UserError(
                    f"the continuation {quoted(continuation, 60)} has {plural(len(scored), 'token')}; expected from "
                    f"1 to {self.length}"
                )
        scores = self.scored(encoded)
        return [
            Likelihood(float(log_probabilities.sum(dtype=np.float64)), bool(first.all()))
            for log_probabilities, first in scores
        ]

    def scored(self, parts: Sequence[Window]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Log-probabilities of each window's scored tokens, and whether each is the likeliest."""
        rows = [[*before, *scored][-(self.length + 1) :] for before, scored in parts]
        scores = self.scorer.scored(rows)
        if not all(np.isfinite(score.log_probabilities).all() for score in scores):
            raise NotFinite
        return [
            (score.log_probabilities[-len(part.scored) :], score.likeliest[-len(part.scored) :])
            for score, part in zip(scores, parts, strict=True)
        ]

    def token_likelihoods(self, texts: Sequence[str], stride: int | None = None) -> list[list[np.ndarray]]:
        """Log-probabilities of all tokens of each text, an array for each window.

        Raises:
            UserError: a text has no token, or the model is not finite.
        """
        encoded = [self._encode_without_begin(text) for text in texts]
        for text, tokens in zip(texts, encoded, strict=True):
            if not tokens:
                raise UserError(f"--tasks: the text {quoted(text, 60)} has no token; expected one at least")
        parts = [list(windows(tokens, self.begin, self.length, stride)) for tokens in encoded]
        scores = iter(self.scored([part for windows_of_text in parts for part in windows_of_text]))
        return [[next(scores)[0] for _ in windows_of_text] for windows_of_text in parts]

    def generated(
        self, prompts: Sequence[str], tokens: int, stops: Sequence[str], sampling: Sampling = LIKELIEST
    ) -> list[str]:
        """The continuation of each prompt, up to the first of `stops`, the end of the document or `tokens` tokens.

        A prompt that is too long is truncated from the left. A stop may be the name of a special token.

        Raises:
            UserError: a prompt has no token, or `tokens` leaves no room for one.
        """
        room = self.length - tokens
        if room < 1:
            raise UserError(
                f"{plural(tokens, 'new token leaves', 'new tokens leave')} no room for a prompt; the model reads "
                f"{self.length}"
            )
        prompt_tokens = [self.text.encode_start(prompt)[-room:] or [self.begin] for prompt in prompts]
        # Prompts of about one length are read together.
        order = sorted(range(len(prompts)), key=lambda index: -len(prompt_tokens[index]))
        texts = [Stop(self.text.decode, stops) for _ in prompts]
        stop_tokens = [*self.text.stops, *(self.text.special[stop] for stop in stops if stop in self.text.special)]
        self.generator.continued(
            [prompt_tokens[index] for index in order], tokens, sampling=sampling, stop=stop_tokens,
            on_token=lambda row, token: texts[order[row]].add_token(token),
        )  # fmt: skip
        return [text.text for text in texts]
