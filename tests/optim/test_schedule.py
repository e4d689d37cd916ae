"""The learning rate at points worked out by hand."""

from dataclasses import dataclass

import numpy as np
import pytest

from jaxpar.config.parts import OPTIMIZERS, Optimizer
from jaxpar.config.schema import OptimizerConfig
from jaxpar.optim import optimizer_arguments


def rates(points, steps=50, **config):
    config = OptimizerConfig(**{"learning_rate": 2.0, "final_fraction": 0.1, **config})
    return [float(optimizer_arguments(config, steps).at(point).learning_rate) for point in points]


@dataclass(frozen=True)
class Damped:
    """Options of an optimizer from outside, a number among them that is written without a fraction."""

    damping: float = 1
    every: int = 10
    power: float | None = 0.5


def test_options_are_arguments_by_the_types_of_their_fields(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "damped", Optimizer("none:none", "tests.optim.test_schedule:Damped"))
    for options in ({}, {"damping": 2, "power": 0.25}):
        arguments = optimizer_arguments(OptimizerConfig(name="damped", options=options), 50)
        assert set(arguments.options) == {"damping"}


@pytest.mark.parametrize("name", ["cosine", "linear", "wsd", "constant"])
def test_warmup_reaches_the_peak_at_its_last_step(name):
    assert rates([0, 1, 3, 4], schedule=name, warmup_steps=4) == pytest.approx([0.5, 1.0, 2.0, 2.0])


def test_cosine():
    # between step 10 and step 50; cos(pi / 4) at a quarter
    quarter = 0.2 + 1.8 * (1 + np.sqrt(0.5)) / 2
    points = rates([9, 10, 20, 30, 50, 70], schedule="cosine", warmup_steps=10)
    assert points == pytest.approx([2.0, 2.0, quarter, 1.1, 0.2, 0.2], rel=1e-6)


def test_linear():
    points = rates([10, 20, 30, 50, 70], schedule="linear", warmup_steps=10)
    assert points == pytest.approx([2.0, 1.55, 1.1, 0.2, 0.2], rel=1e-6)


def test_wsd_falls_over_the_last_share_of_the_schedule():
    points = rates([10, 39, 40, 45, 50, 70], schedule="wsd", warmup_steps=10, decay_fraction=0.2)
    assert points == pytest.approx([2.0, 2.0, 2.0, 1.1, 0.2, 0.2], rel=1e-6)


def test_constant():
    assert rates([10, 50, 70], schedule="constant", warmup_steps=10) == [2.0, 2.0, 2.0]


def test_decay_steps_end_the_schedule_before_the_run():
    assert rates([15, 20, 40], schedule="linear", warmup_steps=10, decay_steps=20) == pytest.approx([1.1, 0.2, 0.2])


def test_without_warmup_the_first_step_has_the_peak():
    assert rates([0, 25], schedule="linear", warmup_steps=0) == pytest.approx([2.0, 1.1])


def test_a_run_shorter_than_its_warmup_ends_warming_up():
    assert rates([0, 4, 9, 10], schedule="cosine", warmup_steps=10, steps=5) == pytest.approx([0.2, 1.0, 2.0, 0.2])


def test_wsd_without_a_fall_drops_at_the_end():
    points = rates([49, 50], schedule="wsd", warmup_steps=0, decay_fraction=0.0)
    assert points == pytest.approx([2.0, 0.2])


def test_muons_matrices_have_the_same_schedule_with_a_peak_of_their_own():
    rates = {"learning_rate": 2.0, "matrix_learning_rate": 5.0}
    config = OptimizerConfig(name="muon", schedule="linear", warmup_steps=10, **rates)
    arguments = optimizer_arguments(config, 50)
    for step in (0, 9, 19):
        now = arguments.at(step)
        assert float(now.matrix_learning_rate) == pytest.approx(2.5 * float(now.learning_rate), rel=1e-6)
    assert float(now.learning_rate) == pytest.approx(2.0 * (1 - 0.9 * 9 / 40), rel=1e-6)
