"""States that pass from context rank to context rank: on each transport those of one recurrence, and what is sent."""

from __future__ import annotations

from typing import Any

import pytest

from jaxpar.layers.linear_attention.transports import TRANSPORTS
from tests.layers.linear_attention.test_mixers import assert_equals_float64, small_chunks
from tests.small_run import with_overlap

__all__ = ["small_chunks"]

ROWS = [
    (transport, context, mixer)
    for transport in TRANSPORTS
    for context in (2, 4, 8)
    for mixer in ("gated_deltanet", "gla", "lightning")
]
"""Maps of a state that are a matrix, a diagonal, and one number for each head."""


@pytest.mark.matrix(quick=(), ci=4)
@pytest.mark.parametrize(
    ("transport", "context", "mixer"), ROWS, ids=lambda value: f"context{value}" if isinstance(value, int) else value
)
def test_loss_and_gradients_equal_a_recurrence_in_float64(
    transport: str, context: int, mixer: str, monkeypatch: pytest.MonkeyPatch
):
    parallel: dict[str, Any] = with_overlap({"context": context}, state_messages=transport)
    run = assert_equals_float64(mixer, parallel, monkeypatch)
    assert run.step.layout.plan.state_messages.name == transport
