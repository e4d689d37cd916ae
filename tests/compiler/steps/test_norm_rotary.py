"""A training step whose norms of queries and keys are the kernels', as XLA's GPU compiler makes it."""

from __future__ import annotations

import pytest

from jaxpar.compiler.program.hlo.records import leaves
from tests.compiler.inspected import inspected, wide

BACKWARD = "norm_rotary_backward"
NUMBERS = 2 * 64 // 2 * 4 * 64
"""Of queries of a microbatch on a rank: two rows of half of 64 tokens, and four heads of 64. Keys have two heads."""


@pytest.mark.long
def test_the_kernels_are_in_the_step_and_its_work_is_known():
    """Two ranks share the heads, two the sequence and two the rows: each layer runs the forward of queries and of keys
    when it comes and again in its backward, in which the derivative follows."""
    config = wide(
        model={"qk_norm": True, "heads": 8, "kv_heads": 4, "head_dim": 64, "layers": 4},
        parallel={"tensor": 2, "context": 2, "fsdp": 2, "microbatches": 4, "zero": 3},
        attention={"norm_rotary": "triton"}, memory={"remat": "full"},
    )  # fmt: skip
    analysis, _ = inspected(config, "h100:1x8")
    calls = [cost for cost in analysis.costs if cost.op.opcode == "custom-call" and "norm_rotary" in cost.op.op_name]
    times, microbatches = {"forward": 0.0, "again": 0.0, "backward": 0.0}, 4
    for cost in calls:
        assert (cost.kind, cost.flops) == ("elementwise", 0)
        numbers = next(leaves(cost.op.operands[0].shape)).elements
        assert numbers in (NUMBERS, NUMBERS // 2), "of queries, and of keys"
        each, arrays = (15, 3) if BACKWARD in cost.op.op_name else (7, 2)
        assert cost.vector_flops == each * numbers
        tables = 64 * 64 * 4  # cosines and sines of 64 tokens, float32
        moved = cost.read_bytes + cost.written_bytes - 2 * arrays * numbers - tables
        assert 0 <= moved <= 64 * 64 * 4, "the norm's scale, and sums of programs for its gradient"
        way = "backward" if arrays == 3 else "again" if cost.recomputed else "forward"
        times[way] += cost.executions / microbatches / 2
    assert times == {"forward": 4, "again": 4, "backward": 4}, "of four layers"
