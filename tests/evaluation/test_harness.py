"""The model that lm-evaluation-harness gets answers as its own `hf` model does."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.evaluation.goldens import EVALUATION, TOLERANCE, language_model, results
from tests.sentences import refused

NAME = "jaxpar.evaluation.harness"


@pytest.fixture(scope="module")
def harness() -> Iterator[ModuleType]:
    """The module, with a stand-in for `lm_eval`."""
    ours = lambda: [name for name in sys.modules if name == NAME or name.split(".")[0] == "lm_eval"]
    with pytest.MonkeyPatch.context() as patch:
        for name in ours():
            patch.delitem(sys.modules, name)
        patch.syspath_prepend(str(Path(__file__).with_name("stand_in")))
        yield importlib.import_module(NAME)
        for name in ours():
            del sys.modules[name]


def requests(*arguments: tuple[Any, ...]) -> list[SimpleNamespace]:
    return [SimpleNamespace(args=own) for own in arguments]


def lines(task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EVALUATION / f"{task}.jsonl").read_text().splitlines()]


def test_the_answers_are_those_of_its_own_model(harness: ModuleType):
    model, wanted = harness.HarnessModel(language_model("llama")), results("llama")
    asked = [(row["context"], f" {choice}") for row in lines("choice") for choice in row["choices"]]
    found = model.loglikelihood(requests(*asked))
    totals = [total for row in wanted["choice"]["examples"] for total in row]
    np.testing.assert_allclose([total for total, _ in found], totals, rtol=TOLERANCE)
    assert {type(greedy) for _, greedy in found} == {bool}
    rolling = model.loglikelihood_rolling(requests(*((row["text"],) for row in lines("text"))))
    np.testing.assert_allclose(rolling, wanted["text"]["examples"], rtol=TOLERANCE)
    settings = {"until": ["\n", "s"], "max_gen_toks": 12, "do_sample": False}
    texts = model.generate_until(requests(*((row["prompt"], settings) for row in lines("question"))))
    assert texts == wanted["question"]["examples"]


def test_a_generated_text_is_the_greedy_one(harness: ModuleType):
    model = harness.HarnessModel(language_model("llama"))
    prompt, text = lines("question")[3]["prompt"], results("llama")["question"]["examples"][3]
    right, wrong = model.loglikelihood(requests((prompt, text), (prompt, f"{text[:-1]}z")))
    assert right[1] and not wrong[1] and right[0] > wrong[0]


def test_settings_that_are_not_known_are_refused(harness: ModuleType):
    model = harness.HarnessModel(language_model("llama"))
    with refused("generation_kwargs", "temprature", "temperature"):
        model.generate_until(requests(("a", {"temprature": 1.0})))


def test_results_keep_their_errors_and_filters(harness: ModuleType):
    values = {"alias": "x", "acc,none": 0.5, "acc_stderr,none": 0.1, "em,strict": 1, "em_stderr,strict": "N/A"}
    found = harness.outcome_of(values, {"original": 9, "effective": 7})
    assert found.metrics == {"acc": (0.5, 0.1), "em,strict": (1.0, None)} and found.examples == 7
