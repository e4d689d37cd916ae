"""Sums over replicas beside the last microbatch's backward: the numbers of one device on every layout."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nonzero_gradients import gemma, nonzero_gradients
from tests.small_run import SmallRun, small, with_overlap
from tests.training.parity.one_device import assert_equals_one_device

LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "HSDP": {"parallel": {"replica": 2, "fsdp": 2, "microbatches": 2}},
    "HSDP, one microbatch, tied, tensor": {
        "parallel": {"replica": 2, "fsdp": 2, "tensor": 2},
        "model": {"tied": True},
    },
    "ZeRO-2, context, three layers of two kinds": {
        "parallel": {"replica": 2, "fsdp": 2, "context": 2, "zero": 2, "microbatches": 2},
        "model": gemma(layers=3),
    },
    "ZeRO-0": {"parallel": {"replica": 2, "fsdp": 2, "context": 2, "zero": 0, "microbatches": 2}},
    "state on the host": {
        "parallel": {"replica": 4, "fsdp": 2},
        "memory": {"optimizer_offload": "host"},
    },
    "one layer": {"parallel": {"replica": 2, "microbatches": 4}, "model": {"layers": 1}},
}


def run_of(sections: dict[str, dict[str, Any]], when: str) -> SmallRun:
    parallel = with_overlap(sections["parallel"], replica_sums=when)
    return SmallRun(small(**sections | {"parallel": parallel}), node_devices=4)


def reference(model: dict[str, Any]) -> tuple[float, Any, Any]:
    """Loss, gradients and initial weights on one device."""
    run = SmallRun(small(model=model))
    initial = run.by_layer(run.step.residency.initial_state().master)
    return *nonzero_gradients(run, initial), initial


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradients_equal_one_device(layout: str):
    sections = LAYOUTS[layout]
    expected = reference(sections.get("model", {}))
    assert_equals_one_device(run_of(sections, "overlapped"), *expected)
