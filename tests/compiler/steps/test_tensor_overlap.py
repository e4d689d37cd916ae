"""Rings between tensor ranks in the program for H100s: a matmul beside the sends, and the bytes of the formulas."""

from pathlib import Path
from typing import Any

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
        parallel={"tensor": 4, "fsdp": 2, "overlap": {"tensor": "ring", "tensor_chunks": 1}},
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
    alone = [one for one in sends if not any(name in matmuls for name, _ in one.time.beside)]
    return len(sends), [f"{one.movement.transfer.inner.op_name}: {one.movement.source}" for one in alone]


SEQUENCE = ("gather_sequence", "scatter_sequence")
LAYOUTS: dict[str, dict[str, Any]] = {
    "split backward": {"pipe": 2, "schedule": "zb-h1", "microbatches": 4},
    "ulysses": {"context": 2, "context_strategy": "ulysses"},
    "ring attention": {"context": 2, "context_strategy": "ring"},
}
ALONE = {"split backward": 0, "ulysses": 3, "ring attention": 3}
"""Sends without a matmul beside them: with context ranks those of the feed-forward's output in the forward loop, which
XLA places beside slices alone."""


def whole(analysis: Analysis) -> set[str]:
    """Files that ask for the sequence in one message: gathered, or summed and scattered, whole."""
    movements = [overlap.movement for overlap in analysis.schedule.overlaps]
    return {
        Path(one.source.file).name if one.source else "unknown"
        for one in movements
        if one.kind != "collective-permute" and one.parts[0].collective in SEQUENCE
    }


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


@pytest.mark.long
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_matmul_runs_beside_the_sends_of_other_layouts_and_no_layer_gathers_the_sequence_whole(name: str):
    analysis, _ = inspected(
        wide(
            parallel={"tensor": 4, "overlap": {"tensor": "ring", "tensor_chunks": 1}, **LAYOUTS[name]},
            memory={"remat": "full"},
            model={"embed": 512, "mlp": 1024},
            data={"sequence_length": 2048},
        ),
        CLUSTER,
    )
    sends, alone = not_beside_a_matmul(analysis)
    assert sends >= 3 * (4 + 4 + 2)
    assert len(alone) <= ALONE[name], alone
    assert whole(analysis) == {"embedding.py", "tiled_loss.py"}
