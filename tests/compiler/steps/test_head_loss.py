"""A training step whose head and loss are the kernel's, as XLA's GPU compiler makes it."""

from __future__ import annotations

import pytest

from tests.compiler.inspected import inspected, wide


@pytest.mark.long
def test_the_kernel_is_in_the_step_and_its_work_is_known():
    """Two ranks share a vocabulary of 512, and each makes the logits of 256 tokens twice."""
    config = wide(parallel={"tensor": 2, "fsdp": 4}, memory={"loss_backend": "fused"}, model={"logit_softcap": 30.0})
    analysis, _ = inspected(config, "h100:1x8")
    costs = {
        name: [cost for cost in analysis.costs if name in cost.op.op_name and cost.op.opcode == "custom-call"]
        for name in ("linear_cross_entropy_statistics", "linear_cross_entropy_gradients")
    }
    (forward,), (backward,) = costs.values()
    tokens = 64 * 16 // 4
    assert forward.flops == backward.flops == 2 * tokens * 128 * 512 / 2
    assert (forward.recomputed_flops, backward.recomputed_flops) == (0, backward.flops)
    assert forward.arithmetic == "bfloat16" and forward.executions == backward.executions == 1
