"""Comparisons of the matrices of layouts: initial weights bit for bit, loss, gradients and reports within 1e-5."""

from collections.abc import Mapping
from typing import Any, SupportsFloat

import jax
import numpy as np
import pytest

from jaxpar.layout.state import TrainState
from jaxpar.mesh.parameters import merge
from tests.given_weights import state_with
from tests.nonzero_gradients import nonzero_gradients
from tests.small_run import SmallRun, worst_difference

TOLERANCE = 1e-5
"""max|difference| / max|reference| in float32, for the loss and for every gradient."""


def assert_equals_one_device(run: SmallRun, loss: float, gradients: Any, weights: Any) -> None:
    """The layout of `run` has the initial `weights` of one device in every bit, and its loss and gradients."""
    initial = run.by_layer(run.step.residency.initial_state().master)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, initial, weights))), "initial weights differ in some bit"
    found_loss, found = nonzero_gradients(run, initial)
    assert_close(found_loss, loss, found, gradients)


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
