"""Rings between tensor ranks train to the numbers of one device, with every feature that a layer's matmuls meet."""

from functools import cache
from typing import Any

import pytest

from tests.nonzero_gradients import FAMILIES, nonzero_gradients
from tests.small_run import SmallRun, small, with_overlap
from tests.training.parity.one_device import assert_close

LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "fsdp, full remat": {"parallel": {"tensor": 2, "fsdp": 2, "zero": 3}, "memory": {"remat": "full"}},
    "two chunks, split backward": {
        "parallel": {"tensor": 2, "pipe": 2, "microbatches": 4, "schedule": "zb-h1", "overlap": {"tensor_chunks": 2}},
        "memory": {"remat": "gemm_last"},
    },
    "four ranks, nothing recomputed": {
        "parallel": {"tensor": 4, "overlap": {"tensor_chunks": 1}}, "memory": {"remat": "none"}
    },
    "ring attention": {
        "parallel": {"tensor": 2, "context": 2, "context_strategy": "ring", "overlap": {"tensor_chunks": 4}},
        "memory": {"remat": "selective"},
    },
    "ulysses, padded stages": {
        "parallel": {
            "tensor": 2, "context": 2, "context_strategy": "ulysses", "pipe": 2, "microbatches": 2, "zero": 2,
            "stage_layers": (1, 3),
        },
        "memory": {"remat": "full"},
    },
    "three chunks, v-shaped pipeline": {
        "parallel": {"tensor": 2, "pipe": 2, "microbatches": 4, "schedule": "zb-v", "overlap": {"tensor_chunks": 3}},
        "data": {"sequence_length": 48},
    },
    "tiles of the feed-forward": {"parallel": {"tensor": 4, "fsdp": 2}, "memory": {"remat": "full", "mlp_tiles": 3}},
}  # fmt: skip


def config_of(family: str, **sections: dict[str, Any]) -> Any:
    model = {"layers": 4, "kv_heads": 2 if family == "llama" else 8} | FAMILIES[family]
    return small(**sections | {"model": model, "data": {"packed": True} | sections.get("data", {})})


@cache
def reference(family: str, length: int) -> tuple[float, Any]:
    return nonzero_gradients(SmallRun(config_of(family, data={"sequence_length": length})))


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_loss_and_gradients_equal_one_device(name: str, family: str):
    layout = LAYOUTS[name]
    loss, gradients = reference(family, layout.get("data", {}).get("sequence_length", 32))
    run = SmallRun(config_of(family, **layout | {"parallel": with_overlap(layout["parallel"], tensor="ring")}))
    assert {own.algorithm.name for own in run.step.layout.plan.tensor_overlap.values()} == {"ring"}
    found_loss, found = nonzero_gradients(run)
    assert_close(found_loss, loss, found, gradients)
