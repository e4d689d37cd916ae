"""Metrics of the run from those of its islands."""

from typing import Any

import jax.numpy as jnp
import pytest

from jaxpar.training.residency.island_metrics import metrics_of_islands
from jaxpar.training.step.forward_backward import StepMetrics


def metrics(loss: list[float], tokens: list[float], report: list[float]) -> Any:
    one = jnp.ones(len(loss))
    each = StepMetrics(one, one, one, None, one, one > 0, one.astype(int), one, {}, {}, {})
    return metrics_of_islands(
        each._replace(loss=jnp.array(loss), tokens=jnp.array(tokens), report={"load": jnp.array(report)})
    )


def test_losses_and_reports_are_means_over_tokens():
    found = metrics([2.0, 4.0], [30.0, 10.0], [1.0, 5.0])
    assert (float(found.loss), float(found.report["load"]), float(found.tokens)) == (2.5, 2.0, 40.0)


def test_an_island_without_tokens_has_no_loss_and_changes_none():
    assert float(metrics([2.0, float("nan")], [30.0, 0.0], [1.0, 5.0]).loss) == 2.0


@pytest.mark.parametrize("tokens", [[0.0, 0.0], [30.0, float("nan")]])
def test_a_loss_that_is_not_a_number_stays_visible(tokens):
    found = float(metrics([2.0, float("nan")], tokens, [1.0, 5.0]).loss)
    assert found != found


def test_a_step_is_finite_where_it_is_on_all_islands_and_skipped_as_often_as_on_the_worst():
    one = jnp.ones(2)
    finite, skipped = jnp.array([True, False]), jnp.array([0, 3])
    found = metrics_of_islands(
        StepMetrics(one, jnp.array([1.0, 4.0]), one, None, one, finite, skipped, one, {}, {}, {})
    )
    assert (bool(found.finite), int(found.skipped_in_row), float(found.grad_norm)) == (False, 3, 2.5)
