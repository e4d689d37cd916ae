"""Layers in a turn of the loop, and gathers of weights in parts: the numbers of one device."""

from typing import Any

import pytest

from tests.nonzero_gradients import gemma, nonzero_gradients
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_equals_one_device

LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "two, four loops": {
        "parallel": {"fsdp": 2, "microbatches": 2, "overlap": {"layer_unroll": 2}}, "model": {"layers": 5}
    },
    "three, HSDP": {
        "parallel": {"replica": 2, "fsdp": 2, "overlap": {"layer_unroll": 3}},
        "model": {"layers": 5},
    },
    "more than there are, offloaded, of two kinds": {
        "parallel": {"fsdp": 2, "context": 2, "overlap": {"layer_unroll": 8}},
        "memory": {"remat": "gemm_last", "offload_fraction": 0.5},
        "model": gemma(layers=7),
    },
    "two in a pipeline": {
        "parallel": {"pipe": 2, "fsdp": 2, "microbatches": 4, "overlap": {"layer_unroll": 2}}, "model": {"layers": 8}
    },
    "one, weights in parts, tiles": {
        "parallel": {"fsdp": 2, "context": 2, "overlap": {"layer_unroll": 1, "weight_prefetch": "parts"}},
        "memory": {"remat": "full", "mlp_tiles": 2}, "model": {"layers": 3}
    },
    "two, weights in parts beside copies to the host": {
        "parallel": {"fsdp": 4, "microbatches": 2, "overlap": {"layer_unroll": 2, "weight_prefetch": "parts"}},
        "memory": {"remat": "gemm_last", "offload_fraction": 0.5}, "model": gemma(layers=5),
    },
}  # fmt: skip


@pytest.mark.matrix(quick=("two, four loops",), ci=1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradients_equal_one_device(layout: str):
    sections = LAYOUTS[layout]
    alone = SmallRun(small(model=sections["model"]))
    initial = alone.by_layer(alone.step.residency.initial_state().master)
    run = SmallRun(small(**sections))
    plan, asked = run.step.layout.plan, sections["parallel"]["overlap"]
    assert plan.layer_unroll.name == asked["layer_unroll"]
    assert plan.weight_prefetch.name == asked.get("weight_prefetch", "layer")
    assert_equals_one_device(run, *nonzero_gradients(alone, initial), initial)
