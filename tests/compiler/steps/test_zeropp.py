"""ZeRO++ in programs compiled for two nodes of H100s: its collectives send what they state, on the links they state."""

from typing import Any

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.report import Report
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.counting import parameter_count
from tests.compiler.inspected import asked, inspected, sent, wide

CLUSTER, GPUS = "h100:2x4", 4
MODEL = {"layers": 4, "embed": 512, "heads": 8, "mlp": 1536, "vocab": 1024}
SHARDED = {"fsdp": 8, "zero": 3}
QUANTIZED = {"quantized": {"weights": "int8", "gradients": "int4"}}
ALL = {"parallel": SHARDED | {"secondary_shard": 4} | QUANTIZED}


def compiled(sections: dict[str, dict[str, Any]]) -> tuple[Any, Any, Report]:
    config = wide(**sections, model=MODEL)
    _, report = inspected(config, CLUSTER)
    return *plan_for(config, parse_cluster(CLUSTER)), report


def between_nodes(report: Report) -> float:
    """Bytes that a node sends to the other one. Of a ring over both, one GPU of each sends to the next node; where
    ranks of one place in their nodes form groups, all of a node's GPUs do."""
    return sum(
        row.bytes * (1 if row.kind in ("all-reduce", "reduce-scatter") or row.dtype != "u8" else GPUS)
        for row in report.collectives
        if row.crosses_nodes
    )


@pytest.mark.long
def test_bytes_between_nodes_fall_to_a_quarter():
    """From 3M to at most 0.76M, of which two nodes exchange half: a node already has the other half of each weight."""
    config, plan, report = compiled(ALL)
    assert sent(report) == dict(asked(config, plan))
    weights = 2 * parameter_count(config.model, padded=True)
    exact = {"parallel": SHARDED, "precision": {"gradient": "bfloat16"}}
    assert between_nodes(compiled(exact)[2]) > 2.5 * weights, "a flat ring: 7/8 of 3M"
    assert between_nodes(report) <= 0.76 * weights * (1 / 2 + 0.01)
    crossing = {row.dtype for row in report.collectives if row.crosses_nodes and row.collective != "reduce_sum"}
    assert crossing == {"u8"}
