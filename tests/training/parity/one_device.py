"""Comparisons of the matrices of layouts: initial weights bit for bit, loss, gradients and reports within 1e-5."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, SupportsFloat

import jax
import numpy as np
import pytest

from jaxpar.config import Config
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.layout.state import TrainState
from jaxpar.mesh.parameters import merge
from tests.given_weights import state_with
from tests.nonzero_gradients import nonzero_gradients
from tests.same_bits import apart, worst_difference
from tests.small_run import SmallRun

TOLERANCE = 1e-5
"""max|difference| / max|reference| in float32, for the loss and for every gradient."""


@cache
def on_one_device(config: Config) -> tuple[float, Any, Any]:
    """Loss, gradients and initial weights of a configuration of one device."""
    run = SmallRun(config)
    initial = run.by_layer(run.step.residency.initial_state().master)
    return *nonzero_gradients(run, initial), initial


def assert_equals_one_device(run: SmallRun, alone: Config) -> None:
    """The layout of `run` has the initial weights of one device, `alone`, in every bit, and its loss and gradients."""
    loss, gradients, weights = on_one_device(alone)
    initial = run.by_layer(run.step.residency.initial_state().master)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, initial, weights))), "initial weights differ in some bit"
    found_loss, found = nonzero_gradients(run, initial)
    assert_close(found_loss, loss, found, gradients)


def changed_by_quantizing(alone: Config) -> float:
    """By what share of their size FP8 matmuls change the gradients of one device."""
    precision = replace(alone.precision, matmul=None, matmul_options=MatmulOptions())
    return apart(on_one_device(alone)[1], on_one_device(replace(alone, precision=precision))[1])


def assert_near_one_device(config: Config, alone: Config, limit: float) -> None:
    """A layout with FP8 matmuls has the loss of one device, and gradients within this share of their size."""
    loss, gradients = nonzero_gradients(SmallRun(config))
    wanted_loss, wanted, _ = on_one_device(alone)
    assert abs(loss - wanted_loss) <= 1e-4 * wanted_loss
    assert apart(gradients, wanted) <= limit


def assert_close(found_loss: SupportsFloat, loss: float, found: Any, gradients: Any) -> None:
    """A loss and gradients, by layer, are the wanted ones within `TOLERANCE`."""
    assert abs(float(found_loss) - loss) <= TOLERANCE * abs(loss)
    worst, leaf = worst_difference(found, gradients)
    assert worst <= TOLERANCE, f"gradient of {leaf} differs by {worst:.1e}"


def assert_equals_float64(
    run: SmallRun, weights: Any, batch: dict[str, np.ndarray], wanted: Mapping[str, float], gradients: Any
) -> tuple[TrainState, float]:
    """The loss, its gradients and all reports are those of a float64 reference; returns the state and the count."""
    state = state_with(run.step, run.by_row(weights) if run.config.parallel.pipe > 1 else weights)
    placed = run.place(batch)
    loss, found = run.step.gradients(state, placed)
    assert_close(loss, wanted["loss"], run.by_layer(found), gradients)
    sums, count = run.step.evaluate(merge(state.frozen, run.step.residency.readable(state.master)), placed)
    for name, value in wanted.items():
        assert float(sums[name]) / float(count) == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE), name
    return state, float(count)
