"""The answers of a model about texts are checked."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxpar.evaluation.language_model import LanguageModel
from jaxpar.generation.scorer import TokenScores
from tests.evaluation.goldens import TOKENIZERS, TOLERANCE, language_model
from tests.sentences import refused


def model_of(**parts: Any) -> LanguageModel:
    """A model of characters that reads eight, with stand-ins for its scorer and generators."""
    encode = lambda text: [ord(letter) for letter in text]
    text: Any = SimpleNamespace(
        begin=0, stops=(), special={}, encode=encode, encode_start=encode, decode=lambda tokens: ""
    )
    nothing: Any = None
    model = LanguageModel(nothing, text, 8)
    model.__dict__.update(parts)
    return model


def scoring(value: float) -> SimpleNamespace:
    """A scorer whose last log-probability is `value`."""

    def scored(rows: Sequence[Sequence[int]]) -> list[TokenScores]:
        found = [np.full(len(row) - 1, -1.0, np.float32) for row in rows]
        found[-1][-1] = value
        return [
            TokenScores(own, own < 0, np.zeros((len(own), 0), np.int32), np.zeros((len(own), 0)), {}) for own in found
        ]

    return SimpleNamespace(scored=scored)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_log_probabilities_that_are_not_finite_are_refused(value: float):
    pairs = [("a", "b"), ("a", "c")]
    assert [own.total for own in model_of(scorer=scoring(-2.0)).likelihoods(pairs)] == [-1.0, -2.0]
    with refused("finite", "precision.compute"):
        model_of(scorer=scoring(value)).likelihoods(pairs)
    with refused("finite"):
        model_of(scorer=scoring(value)).token_likelihoods(["ab"])


def test_a_text_without_tokens_is_refused():
    with refused("--tasks", "''", "no token"):
        model_of(scorer=scoring(-1.0)).token_likelihoods(["ab", ""])


def test_all_prompts_are_continued_together_and_texts_are_in_their_order():
    begun: list[int] = []

    def continued(rows: Sequence[Sequence[int]], tokens: int, *, on_token: Any, **_: Any) -> None:
        begun.extend(map(len, rows))
        for row, tokens_of_row in enumerate(rows):
            on_token(row, len(tokens_of_row))

    model = model_of(generator=SimpleNamespace(continued=continued))
    model.text.__dict__["decode"] = lambda tokens: str(tokens[0])
    assert model.generated(["aa", "", "a" * 9, "aaa"], 4, []) == ["2", "1", "4", "3"]
    assert begun == [4, 3, 2, 1], "the longest first; an empty one has the token of a beginning"


def test_perplexity_scores_the_tokens_of_a_text_alone():
    """A text of one letter has one, whatever the tokenizer puts before it."""
    for name in TOKENIZERS:
        model = language_model(name)
        (windows,) = model.token_likelihoods(["a"])
        assert [len(own) for own in windows] == [1]
        assert windows[0][0] == pytest.approx(model.likelihoods([("", "a")])[0].total, rel=TOLERANCE)
