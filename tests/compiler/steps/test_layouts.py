"""What the compiled program moves and multiplies is what the code asked for, on eleven layouts."""

from typing import Any

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.model.flops import flops_per_step
from tests.compiler.inspected import CLUSTER, asked, inspected, sent, wide

LAYOUTS: dict[str, dict[str, Any]] = {
    "fsdp, ZeRO-3": {"parallel": {"fsdp": 8, "zero": 3}},
    "tensor and context": {"parallel": {"tensor": 4, "context": 2}},
    "fsdp, ZeRO-2": {"parallel": {"fsdp": 8, "zero": 2, "microbatches": 2}},
    "fsdp, ZeRO-1": {"parallel": {"fsdp": 8, "zero": 1, "microbatches": 2}},
    "replicas": {"parallel": {"replica": 8, "zero": 0}},
    "HSDP, microbatches": {
        # Of two the first would be no loop, and XLA would gather what both need once; so it would where the first
        # microbatch gathers the new weights over replicas.
        "parallel": {
            "replica": 2, "fsdp": 4, "zero": 3, "microbatches": 4, "overlap": {"shard_state_over_replicas": False},
        },
        "data": {"batch_size": 32},
    },
    "fsdp and tensor, full remat": {"parallel": {"fsdp": 4, "tensor": 2, "zero": 3}, "memory": {"remat": "full"}},
    "fsdp and context": {"parallel": {"fsdp": 2, "context": 4, "zero": 3}, "model": {"kv_heads": 2}},
    "expert axis, no remat": {
        "parallel": {"fsdp": 2, "expert": 2, "tensor": 2, "zero": 3},
        "memory": {"remat": "none"},
    },
    "tensor and fsdp, in tiles": {
        "parallel": {"tensor": 4, "fsdp": 2, "zero": 3},
        "memory": {"remat": "full", "loss_tiles": 4, "mlp_tiles": 4},
    },
    "all axes": {"parallel": {"fsdp": 2, "context": 2, "tensor": 2, "zero": 3}},
}  # fmt: skip


@pytest.mark.matrix(ci=3)
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_program_moves_what_the_collectives_state_and_multiplies_what_the_model_states(name: str):
    config, plan = plan_for(wide(**LAYOUTS[name]), parse_cluster(CLUSTER))
    analysis, report = inspected(wide(**LAYOUTS[name]))

    assert sent(report) == dict(asked(config, plan))

    model, data = config.model, config.data
    tokens = data.batch_size * data.sequence_length
    whole_blocks = data.batch_size * data.sequence_length**2
    model_flops = flops_per_step(model, tokens, {model.window: whole_blocks}, model.vocab or 0) / plan.axes.devices
    assert report.flops - report.recompute_flops == pytest.approx(model_flops, rel=0.01)

    classes = sum(size for kind, size in report.classes.items() if kind != "host")
    assert classes == pytest.approx(report.peak_bytes, rel=0.02)
    assert analysis.compilation.memory.peak == report.peak_bytes
