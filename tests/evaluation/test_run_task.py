"""Numbers of tasks are those of lm-evaluation-harness."""

from typing import Any

import numpy as np
import pytest

from jaxpar.evaluation import matching
from jaxpar.evaluation.run_task import compared, run_task
from jaxpar.evaluation.task import (
    Choice,
    Document,
    Example,
    Generation,
    MultipleChoice,
    Perplexity,
    Question,
    Settings,
    Task,
)
from jaxpar.evaluation.task_file import read_task
from tests.evaluation.goldens import EVALUATION, TOKENIZERS, TOLERANCE, language_model, results
from tests.sentences import refused


@pytest.mark.matrix(quick=("llama",), ci=1)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_tasks_have_the_numbers_of_lm_evaluation_harness(name: str):
    model, wanted = language_model(name), results(name)
    found = {task: run_task(model, read_task(EVALUATION / f"{task}.yaml")) for task in wanted}
    for task, outcome in found.items():
        assert outcome.examples == len(wanted[task]["examples"])
        for metric, value in wanted[task]["metrics"].items():
            key = metric.removesuffix(",none")
            own = outcome.metrics[key.removesuffix("_stderr")]
            assert (own.error if key.endswith("_stderr") else own.value) == pytest.approx(value, rel=TOLERANCE)
    assert [own["text"] for own in found["question"].details] == wanted["question"]["examples"]
    for own, totals in zip(found["choice"].details, wanted["choice"]["examples"], strict=True):
        np.testing.assert_allclose(own["log_likelihoods"], totals, rtol=TOLERANCE)
    of_texts = [own["log_likelihood"] for own in found["text"].details]
    np.testing.assert_allclose(of_texts, wanted["text"]["examples"], rtol=TOLERANCE)


@pytest.mark.parametrize(
    ("settings", "text", "wanted"),
    [
        ({}, " 42 \n", "42"),
        ({"pattern": r"-?\d+"}, "it is -42, or 43", "-42"),
        ({"pattern": r"answer: (\w+)"}, "the answer: Yes.", "Yes"),
        ({"pattern": r"\d"}, "none", None),
        ({"ignore_case": True, "ignore_punctuation": True}, "Yes, it is!", "yes it is"),
    ],
)
def test_what_of_a_text_is_compared(settings: dict[str, Any], text: str, wanted: str | None):
    assert compared([text, text], Generation("x", **settings)) == [wanted] * 2


def test_a_pattern_that_fills_the_memory_ends_with_a_sentence(capfd: pytest.CaptureFixture[str]):
    with refused("pattern", "(a|b)*?c", "1 GiB", "text 2 of 3"):
        matching.first_matches("(a|b)*?c", ["abc", "ab" * 20_000_000, "abc"])
    assert capfd.readouterr() == ("", "")


def test_a_pattern_that_takes_hours_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(matching, "SECONDS", 0.2)
    settings = Generation("x", pattern="(a+)+$")
    assert compared(["aaa", "b"], settings) == ["aaa", None]
    with refused("pattern", "(a+)+$", "0.2 seconds", "text 2 of 3"):
        compared(["aaa", "a" * 40 + "b", "a"], settings)


def test_lone_surrogates_and_long_texts_are_matched():
    long = "b" * 10**6 + "\ud800a"
    assert compared([long, ""], Generation("x", pattern="[\ud800].|^$")) == ["\ud800a", ""]


@pytest.mark.parametrize(
    ("settings", "example", "parts"),
    [
        (Generation("x", tokens=128), Question("a", "b"), ("quiz", "128 new tokens", "reads 128")),
        (Perplexity("x", stride=129), Document("a"), ("quiz", "stride", "at most 128", "129")),
        (MultipleChoice("x"), Choice("a", ("b", "cat " * 90), 0), ("quiz", "cat", "1 to 128")),
        (MultipleChoice("x", delimiter=""), Choice("a", ("b", "#"), 0), ("quiz", "'#'", "0 tokens")),
    ],
)
def test_what_does_not_fit_into_the_context_is_refused(settings: Settings, example: Example, parts: tuple[str, ...]):
    with refused(*parts):
        run_task(language_model("llama"), Task("quiz", settings, (example,)))
