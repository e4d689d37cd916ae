"""Rings between tensor ranks in the program for H100s: a matmul beside the sends, and the bytes of the formulas."""

from __future__ import annotations

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.report import Analysis
from jaxpar.config import Config
from jaxpar.hardware.cluster import parse_cluster
from tests.compiler.inspected import asked, inspected, sent, wide

CLUSTER = "h100:1x8"


def ring() -> Config:
    """Full remat, ZeRO-3 beside the rings, and sends that take longer than the slices beside them."""
    return wide(
        parallel={"tensor": 4, "fsdp": 2, "tensor_overlap": "ring", "tensor_chunks": 1},
        memory={"remat": "full"},
        model={"embed": 512, "mlp": 1024, "layers": 3},
        data={"sequence_length": 2048},
    )


def not_beside_a_matmul(analysis: Analysis) -> tuple[int, list[str]]:
    """How many sends of the sequence there are, and those between whose start and done no matmul runs."""
    matmuls = {cost.op.name for cost in analysis.costs if cost.flops}
    sends = [
        overlap
        for overlap in analysis.schedule.overlaps
        if overlap.movement.kind == "collective-permute" and overlap.movement.parts[0].collective in SEQUENCE
    ]
    alone = [one for one in sends if not any(each.op.name in matmuls for each in one.enclosed)]
    return len(sends), [f"{one.movement.transfer.inner.op_name}: {one.movement.source}" for one in alone]


SEQUENCE = ("gather_sequence", "scatter_sequence")


@pytest.mark.long
def test_a_matmul_runs_beside_the_sends_forward_and_backward():
    config = ring()
    analysis, report = inspected(config, CLUSTER)
    sends, alone = not_beside_a_matmul(analysis)
    # In a layer's program four groups, forward and backward, send three parts; inward groups twice in the backward.
    assert sends >= 3 * (4 + 4 + 2)
    # XLA hides one of this small program behind slices of weights instead, for less than it takes.
    assert len(alone) <= 0.05 * sends, alone
    found, wanted = sent(report), asked(plan_for(config, parse_cluster(CLUSTER))[0], analysis.compilation.plan)
    assert found["scatter_sequence", "tensor"] == wanted["scatter_sequence", "tensor"]
    # XLA leaves out two of the 26 gathers, which the last layer's recomputation would repeat.
    assert found["gather_sequence", "tensor"] * 26 == wanted["gather_sequence", "tensor"] * 24
