"""Numbers of tasks are those of lm-evaluation-harness."""

from __future__ import annotations

import numpy as np
import pytest

from jaxpar.evaluation.run_task import run_task
from jaxpar.evaluation.task_file import read_task
from tests.evaluation.goldens import EVALUATION, TOKENIZERS, TOLERANCE, language_model, results


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
