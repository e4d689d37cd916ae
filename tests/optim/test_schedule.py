"""The learning rate at points worked out by hand."""

from dataclasses import dataclass

import numpy as np
import pytest

from jaxpar.config.parts import OPTIMIZERS, Optimizer
from jaxpar.config.schema import OptimizerConfig
from jaxpar.optim import optimizer_arguments


def rates(points, steps=50, **config):
    config = OptimizerConfig(**{"learning_rate": 2.0, "final_fraction": 0.1, **config})
    return [float(optimizer_arguments(config, steps).for_step(point).learning_rate) for point in points]


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


QUARTER = 0.2 + 1.8 * (1 + np.sqrt(0.5)) / 2
"""Of a cosine from 2.0 to 0.2: cos(pi / 4)."""


@pytest.mark.parametrize(
    ("schedule", "warmup", "more", "wanted"),
    [
        *((name, 4, {}, {0: 0.5, 1: 1.0, 3: 2.0, 4: 2.0}) for name in ("cosine", "linear", "wsd", "constant")),
        ("cosine", 10, {}, {9: 2.0, 10: 2.0, 20: QUARTER, 30: 1.1, 50: 0.2, 70: 0.2}),
        ("linear", 10, {}, {10: 2.0, 20: 1.55, 30: 1.1, 50: 0.2, 70: 0.2}),
        ("wsd", 10, {"decay_fraction": 0.2}, {10: 2.0, 39: 2.0, 40: 2.0, 45: 1.1, 50: 0.2, 70: 0.2}),
        ("constant", 10, {}, {10: 2.0, 50: 2.0, 70: 2.0}),
        ("linear", 10, {"decay_steps": 20}, {15: 1.1, 20: 0.2, 40: 0.2}),
        ("linear", 0, {}, {0: 2.0, 25: 1.1}),
        ("cosine", 10, {"steps": 5}, {0: 0.2, 4: 1.0, 9: 2.0, 10: 0.2}),  # a run that is shorter than its warm-up
        ("wsd", 0, {"decay_fraction": 0.0}, {49: 2.0, 50: 0.2}),
    ],
)
def test_a_schedule_has_these_rates(schedule, warmup, more, wanted):
    found = rates(wanted, schedule=schedule, warmup_steps=warmup, **more)
    assert found == pytest.approx([*wanted.values()], rel=1e-6)


def test_muons_matrices_have_the_same_schedule_with_a_peak_of_their_own():
    rates = {"learning_rate": 2.0, "matrix_learning_rate": 5.0}
    config = OptimizerConfig(name="muon", schedule="linear", warmup_steps=10, **rates)
    arguments = optimizer_arguments(config, 50)
    for step in (0, 9, 19):
        now = arguments.for_step(step)
        assert float(now.matrix_learning_rate) == pytest.approx(2.5 * float(now.learning_rate), rel=1e-6)
    assert float(now.learning_rate) == pytest.approx(2.0 * (1 - 0.9 * 9 / 40), rel=1e-6)
