"""Rows of the embedding that are exchanged in place of its table: the numbers of one device on every layout."""

from typing import Any

import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from tests.nonzero_gradients import gemma, nonzero_gradients
from tests.small_run import SmallRun, small, with_overlap
from tests.training.parity.one_device import assert_equals_one_device

LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "ZeRO-3": {"parallel": {"fsdp": 4, "microbatches": 2}},
    "ZeRO-3, tied, split vocabulary, context": {
        "parallel": {"fsdp": 2, "tensor": 2, "context": 2},
        "model": {"tied": True},
    },
    "ZeRO-2, learned positions": {
        "parallel": {"fsdp": 4, "zero": 2, "microbatches": 2},
        "model": {"position": "learned", "max_positions": 64},
    },
    "HSDP, scaled embeddings": {
        "parallel": {"replica": 2, "fsdp": 2},
        "model": gemma(layers=3),
    },
    "state over replicas, split vocabulary and sequence": {
        "parallel": {
            "replica": 2, "fsdp": 2, "tensor": 2, "microbatches": 2, "overlap": {"shard_state_over_replicas": True},
        },
        "model": {"position": "learned", "max_positions": 64},
    },
    "experts": {
        "parallel": {"fsdp": 2, "expert": 2},
        "model": {"experts": ExpertsConfig(count=4, per_token=2, width=32, shared=1)},
    },
    "layers in host memory": {
        "parallel": {"fsdp": 4, "microbatches": 2},
        "memory": {"optimizer_offload": "host", "weights_offload": "host"},
    },
}  # fmt: skip


@pytest.mark.matrix(quick=("ZeRO-3",), ci=2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradients_equal_one_device(layout: str):
    sections = LAYOUTS[layout]
    alone = SmallRun(small(model=sections.get("model", {})))
    initial = alone.by_layer(alone.step.residency.initial_state().master)
    expected = nonzero_gradients(alone, initial)
    parallel = with_overlap(sections["parallel"], embedding_messages="rows")
    run = SmallRun(small(**sections | {"parallel": parallel}))
    assert run.step.layout.plan.embedding_messages.name == "rows"
    assert_equals_one_device(run, *expected, initial)
