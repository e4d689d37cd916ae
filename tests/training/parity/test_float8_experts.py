"""Experts in 8 bits: tokens on their way to them, on several layouts."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from jaxpar.config.schema.experts import ExpertsConfig
from tests.nonzero_gradients import nonzero_gradients
from tests.precision.test_matmul import apart
from tests.small_run import SmallRun, small

EXPERTS = ExpertsConfig(count=8, per_token=2, router="hash", shared=1, width=32)
"""Routed by a hash, so that no rounding changes the experts of a token."""
MODEL: dict[str, Any] = {"layers": 2, "experts": EXPERTS}

WIRES: dict[str, dict[str, Any]] = {
    "all to all in slices, several rounds": {
        "parallel": {"expert": 4, "expert_slices": 2, "expert_capacity": 1.0, "expert_exchange": "all_to_all"},
    },
    "all gather, recomputed": {
        "parallel": {"expert": 2, "fsdp": 2, "expert_exchange": "all_gather"},
        "memory": {"remat": "full"},
    },
    "pipeline, tensor ranks": {
        "parallel": {"pipe": 2, "expert": 2, "tensor": 2, "microbatches": 2, "expert_exchange": "all_to_all"},
    },
}


@cache
def _exact() -> tuple[float, Any]:
    return nonzero_gradients(SmallRun(small(model=MODEL)))


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("name", WIRES)
def test_tokens_in_codes_on_their_way_to_experts_change_a_step_by_their_rounding(name: str):
    """By as much on every layout: a token is rounded before it is sent, in blocks of its own."""
    run = SmallRun(small(**WIRES[name] | {"model": MODEL, "precision": {"exchange_wire": "float8_e4m3fn"}}))
    loss, gradients = nonzero_gradients(run)
    wanted_loss, wanted = _exact()
    assert abs(loss - wanted_loss) <= 1e-3 * wanted_loss
    assert apart(gradients, wanted) == pytest.approx(0.0135, rel=0.02)
