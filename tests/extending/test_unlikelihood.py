"""An objective registered from outside the package: loss and gradients of its formula in float64, on any layout."""

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import LossConfig
from jaxpar.config.parts import DATA_SOURCES, OBJECTIVES
from jaxpar.mesh.parameters import merge
from tests.extending import unlikelihood
from tests.given_weights import state_with
from tests.reference import decoder64
from tests.reference.small import random_weights
from tests.sentences import refused
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import TOLERANCE, assert_close

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "one device": {"parallel": {}},
    "context and tensor": {"parallel": {"context": 2, "tensor": 2, "microbatches": 2}, "memory": {"loss_tiles": 3}},
    "pipe": {"parallel": {"pipe": 2, "fsdp": 2, "microbatches": 2, "pipe_ends": "shared"}},
}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries of the registries, for the time of a test."""
    monkeypatch.setitem(OBJECTIVES, "unlikelihood", unlikelihood.LOSS)
    monkeypatch.setitem(DATA_SOURCES, "marked_stdlib", unlikelihood.SOURCE)


def run_of(**sections: dict[str, Any]) -> SmallRun:
    model = {"layers": 2} | sections.pop("model", {})
    return SmallRun(replace(small(model=model, **sections), loss=LossConfig(name="unlikelihood")))


def marked(run: SmallRun, step: int) -> dict[str, np.ndarray]:
    rows = run.rows(step)
    draws = np.random.default_rng(step).random(rows["mask"].shape)
    return rows | {"marked": (draws < 0.3).astype(np.float32)}


def expected(weights: Any, options: dict[str, Any], batch: dict[str, np.ndarray]) -> tuple[float, float, Any]:
    """The loss, its part of the marked tokens, and the loss's gradients, in float64."""
    p = np.exp(decoder64.log_likelihoods(decoder64.logits(weights, options, batch), batch["labels"]))
    mask = np.float64(batch["mask"])
    marks, count = mask * batch["marked"], mask.sum()
    unlikely = -(marks * np.log(1 - p)).sum() / count
    loss = unlikely - ((mask - marks) * np.log(p)).sum() / count
    of_token = (mask - marks - marks * p / (1 - p)) / count
    return loss, unlikely, decoder64.weighted_gradients(weights, options, batch, of_token)


@pytest.mark.matrix(quick=("context and tensor",), ci=1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradients_equal_float64(layout: str):
    run = run_of(**LAYOUTS[layout])
    options = asdict(run.config.model)
    weights, batch = random_weights(options, padded_vocab=64), marked(run, 0)
    wanted, unlikely, gradients = expected(weights, options, batch)
    state = state_with(run.step, run.by_row(weights) if run.config.parallel.pipe > 1 else weights)
    placed = run.place(batch)
    loss, found = run.step.gradients(state, placed)
    assert_close(loss, wanted, run.by_layer(found), gradients)
    sums, count = run.step.evaluate(merge(state.frozen, run.step.residency.readable(state.master)), placed)
    assert float(count) == batch["mask"].sum()
    assert float(sums["unlikelihood"]) / float(count) == pytest.approx(unlikely, rel=TOLERANCE)


@pytest.mark.long
def test_steps_on_every_layout_are_those_of_one_device():
    losses = {}
    for layout, sections in LAYOUTS.items():
        run = run_of(**sections)
        state, losses[layout] = run.step.residency.initial_state(), []
        for step in range(4):
            state, metrics = run.step.train(state, run.place(marked(run, step % 2)), run.step.arguments)
            losses[layout].append(float(metrics.loss))
            assert 0 < float(metrics.report["unlikelihood"]) < float(metrics.loss)
    wanted = losses.pop("one device")
    assert wanted[2] < wanted[0] and wanted[3] < wanted[1], "it learns"
    for layout, found in losses.items():
        np.testing.assert_allclose(found, wanted, rtol=1e-4, err_msg=layout)


def test_its_data_source_marks_repetitions_and_another_source_is_refused():
    run = run_of(model={"vocab": None}, data={"source": "marked_stdlib", "sequence_length": 256})
    rows = run.rows(0)
    row = rows["labels"][0].tolist()
    text = [int(rows["tokens"][0][0]), *row]
    for end, mark in enumerate(rows["marked"][0].tolist(), start=2):
        four = text[max(0, end - 4) : end]
        again = [text[at : at + 4] for at in range(end - 4)]
        assert mark == (len(four) == 4 and four in again)
    assert 0 < rows["marked"].mean() < 1
    assert run.place(rows)["marked"].shape == (1, *rows["marked"].shape)
    plain = run_of()
    with refused("no field marked", "float32 [8, 32]"):
        plain.place(plain.rows(0))


def test_the_page_has_the_objective_as_it_is():
    (block,) = re.findall(r"```python\n(class Unlikelihood.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block in Path(unlikelihood.__file__).read_text(encoding="utf-8")


def test_a_metric_that_the_objective_does_not_declare_is_no_silent_loss(monkeypatch: pytest.MonkeyPatch):
    run = run_of()
    batch = run.place(marked(run, 0))
    monkeypatch.setattr(unlikelihood.Unlikelihood, "reports", ())
    run = run_of()
    with pytest.raises(AssertionError, match="unlikel"):
        jax.eval_shape(run.step.gradients, run.step.layout.state_shapes, batch)
