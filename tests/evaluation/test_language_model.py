"""What a model answers about texts is checked, and every prompt draws with a number of its own."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxpar.evaluation.language_model import LIKELIEST, ROWS, LanguageModel
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
        return [TokenScores(own, own < 0, {}) for own in found]

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


def test_prompts_of_later_batches_draw_with_numbers_of_their_own():
    begun: list[tuple[int, int]] = []

    def continued(rows: Sequence[Sequence[int]], tokens: int, *, first_number: int = 0, **_: Any) -> None:
        begun.append((first_number, len(rows)))

    model_of(_generators={LIKELIEST: SimpleNamespace(continued=continued)}).generated(["a"] * (2 * ROWS + 1), 4, [])
    assert begun == [(0, ROWS), (ROWS, ROWS), (2 * ROWS, 1)]


def test_perplexity_scores_the_tokens_of_a_text_alone():
    """A text of one letter has one, whatever the tokenizer puts before it."""
    for name in TOKENIZERS:
        model = language_model(name)
        (windows,) = model.token_likelihoods(["a"])
        assert [len(own) for own in windows] == [1]
        assert windows[0][0] == pytest.approx(model.likelihoods([("", "a")])[0].total, rel=TOLERANCE)
