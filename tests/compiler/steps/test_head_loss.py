"""A training step whose head and loss are the kernel's, as XLA's GPU compiler makes it."""

import pytest

from jaxpar.compiler.program.costs.ops import recomputed_flops
from tests.compiler.inspected import assert_planned, inspected, wide

STATISTICS, GRADIENTS = "linear_cross_entropy_statistics", "linear_cross_entropy_gradients"
OF_KEPT = "linear_cross_entropy_saved_gradients"


@pytest.mark.long
@pytest.mark.parametrize("logits", ["recompute", "keep"])
def test_the_kernel_is_in_the_step_and_its_work_is_known(logits: str):
    """Two ranks share a vocabulary of 512, and each makes the logits of 256 tokens twice, or once where they are
    kept."""
    config = wide(
        parallel={"tensor": 2, "fsdp": 4}, memory={"loss_backend": "fused", "loss_logits": logits},
        model={"logit_softcap": 30.0},
    )  # fmt: skip
    analysis, _ = inspected(config, "h100:1x8")
    kernels = STATISTICS, GRADIENTS, OF_KEPT
    costs = {
        name: [cost for cost in analysis.costs if name in cost.op.op_name and cost.op.opcode == "custom-call"]
        for name in kernels
    }
    assert [len(costs[name]) for name in kernels] == ([1, 1, 0] if logits == "recompute" else [1, 0, 1])
    (forward,) = costs[STATISTICS]
    matmul = 2 * (64 * 16 // 4) * 128 * 512 / 2
    assert (forward.flops, forward.recomputed_flops, forward.executions) == (matmul, 0, 1)
    assert forward.arithmetic == "bfloat16"
    if logits == "recompute":
        (backward,) = costs[GRADIENTS]
        assert (backward.flops, backward.recomputed_flops, backward.executions) == (matmul, matmul, 1)
    else:
        (backward,) = costs[OF_KEPT]
        assert (backward.kind, backward.flops, backward.executions) == ("elementwise", 0, 1)
    of_head = [cost for cost in analysis.costs if "linear_cross_entropy" in cost.op.op_name]
    assert recomputed_flops(of_head) == (matmul if logits == "recompute" else 0)


HEAVY = {"embed": 512, "mlp": 1024, "vocab": 32768}
"""A device's 2048 tokens of a microbatch have 128 MiB of logits in 16 bits, where a layer keeps 33 MiB."""


@pytest.mark.long
@pytest.mark.parametrize("logits", ["recompute", "keep"])
def test_the_estimate_counts_kept_logits(logits: str):
    config = wide(
        parallel={"fsdp": 8, "zero": 3, "microbatches": 2}, memory={"loss_backend": "fused", "loss_logits": logits},
        model=HEAVY, data={"sequence_length": 1024, "batch_size": 32},
    )  # fmt: skip
    assert_planned(config, "h100:1x8", *inspected(config, "h100:1x8"))
