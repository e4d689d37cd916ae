"""The loss scale of float16: how it moves, and what an overflow does to a training step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config import PrecisionConfig
from jaxpar.runtime import loss_scale
from jaxpar.runtime.carried import Outcome
from jaxpar.runtime.loss_scale import LossScale, loss_scaling
from tests.same_bits import assert_same_bits
from tests.small_run import SmallRun, small

HALF = PrecisionConfig(compute="float16")
ONE = jnp.float32(1)
"""The loss and the gradient norm of a step."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "INITIAL", 1024.0)
    monkeypatch.setattr(loss_scale, "INTERVAL", 3)


def after(outcomes: list[bool], start: float = 1024.0) -> list[float]:
    """The scale after each step, where `outcomes` says which steps were finite."""
    scale, values = LossScale(jnp.float32(start), jnp.int32(0)), []
    scaling = loss_scaling(HALF)
    assert scaling is not None
    for finite in outcomes:
        scale = scaling.next(scale, Outcome(jnp.asarray(finite), ONE, ONE, None))
        values.append(float(scale.value))
    return values


def test_an_overflow_halves_and_a_row_of_good_steps_doubles():
    assert after([True, True, True, True]) == [1024, 1024, 2048, 2048]
    assert after([False, False, True]) == [512, 256, 256]


def test_an_overflow_starts_the_row_again():
    assert after([True, True, False, True, True, True]) == [1024, 1024, 512, 512, 512, 1024]


def test_the_scale_does_not_fall_below_one():
    assert after([False, False], start=2.0) == [1.0, 1.0]


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_other_dtypes_have_no_scale(compute: str):
    assert loss_scaling(PrecisionConfig(compute=compute)) is None
    scaling = loss_scaling(HALF)
    assert scaling is not None
    assert float(scaling.init().value) == 1024.0


def test_a_step_that_overflows_is_skipped_until_the_scale_fits(monkeypatch: pytest.MonkeyPatch):
    """At 2^40 the scaled gradients exceed float16; halved some ten times they fit, and then training goes on."""
    monkeypatch.setattr(loss_scale, "INITIAL", 2.0**40)
    precision = {"compute": "float16"}
    run = SmallRun(small(model={"layers": 1}, precision=precision, parallel={"fsdp": 2}))
    state = run.step.residency.initial_state()
    initial, batch, scale, skipped = jax.device_get(state.master), run.batch(0), 2.0**40, 0
    while True:
        state, metrics = run.step.train(state, batch, run.step.arguments)
        assert float(metrics.loss_scale) == scale
        if metrics.finite:
            break
        skipped, scale = skipped + 1, scale / 2
        assert (int(metrics.skipped_in_row), float(state.carried["loss_scale"].value)) == (skipped, scale)
        assert_same_bits(state.master, initial)
        assert skipped < 40, "the scale never fits"
    assert skipped > 5
    assert (int(state.step), int(state.applied), int(state.skipped_in_row)) == (skipped + 1, 1, 0)
    assert not np.array_equal(
        np.asarray(state.master["layers"]["all"]["mlp"]["up"]), initial["layers"]["all"]["mlp"]["up"]
    )
    assert 1e-3 < float(metrics.grad_norm) < 1e2, "the scale is divided out again"
