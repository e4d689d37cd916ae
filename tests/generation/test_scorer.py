"""Scores of tokens are those of the training step's forward, on any layout, from few compiled programs."""

from typing import Any

import numpy as np
import pytest

from jaxpar.generation import scorer
from jaxpar.generation.placed_model import PlacedModel
from jaxpar.generation.scorer import Scorer
from tests.generation.test_generator import LAYOUTS, ROWS, log_probabilities, model_of, run_of, weights_on
from tests.sentences import refused

TOLERANCE = 1e-5


def scorer_of(name: str, parallel: dict[str, Any]) -> Scorer:
    source, options = model_of(name)
    run = run_of(options, parallel)
    return Scorer(PlacedModel(run.config, run.step.mesh, weights_on(run, source)))


def rows(lengths: tuple[int, ...], vocab: int = 61) -> list[list[int]]:
    draw = np.random.default_rng(1)
    return [draw.integers(0, vocab, length).tolist() for length in lengths]


@pytest.mark.matrix(quick=("llama-split",), ci=1)
@pytest.mark.parametrize(("name", "layout"), ROWS)
def test_scores_are_those_of_the_training_forward(name: str, layout: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scorer, "TILE_BYTES", 2**12)  # several tiles of tokens
    given = rows((3, 17, 40, 2))
    found = scorer_of(name, LAYOUTS[layout]).scored(given)
    source, options = model_of(name)
    reference = run_of(options, {})
    wanted = log_probabilities(reference, weights_on(reference, source), given)
    for number, (row, own) in enumerate(zip(given, found, strict=True)):
        after = wanted[number, : len(row) - 1]
        of_labels = np.take_along_axis(after, np.array(row[1:])[:, None], axis=-1)[:, 0]
        np.testing.assert_allclose(own.log_probabilities, of_labels, atol=TOLERANCE, rtol=TOLERANCE)
        assert own.likeliest.tolist() == (after.argmax(axis=-1) == row[1:]).tolist()


@pytest.fixture(scope="module")
def own() -> Scorer:
    return scorer_of("llama", {})


def test_lengths_of_a_bucket_share_a_program(own: Scorer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scorer, "BATCH_TOKENS", 128)
    given = rows((30, 65, 2, 64, 17))
    together = own.scored(given)
    assert own.compiles == 2, "rows of 64 tokens, two and then one of them"
    again = own.scored([given[2], given[0]])
    assert own.compiles == 2
    for one, other in ((together[2], again[0]), (together[0], again[1])):
        np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, atol=TOLERANCE)
    own.scored(rows((66,)))
    assert own.compiles == 3


@pytest.mark.parametrize(
    ("given", "parts"), [([[1, 2], [1]], ("row 1", "at least two")), ([[1, 61]], ("row 0", "61", "vocabulary of 61"))]
)
def test_wrong_rows_are_refused(own: Scorer, given: list[list[int]], parts: tuple[str, ...]):
    with refused(*parts):
        own.scored(given)
