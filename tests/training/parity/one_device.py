"""What the matrices of layouts compare: initial weights bit for bit, loss and gradients within 1e-5."""

from typing import Any, SupportsFloat

import jax
import numpy as np

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


def assert_close(
    found_loss: SupportsFloat, loss: float, found: Any, gradients: Any, tolerance: float = TOLERANCE
) -> None:
    """A loss and gradients, by layer, are the wanted ones within `tolerance`."""
    assert abs(float(found_loss) - loss) <= TOLERANCE * abs(loss)
    worst, leaf = worst_difference(found, gradients)
    assert worst <= TOLERANCE, f"gradient of {leaf} differs by {worst:.1e}"
