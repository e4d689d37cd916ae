"""Messages between two nodes of H100s in compiled programs: of ZeRO++, and of state over replicas."""

from typing import Any

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.report import Analysis, Report
from jaxpar.config import Config
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.counting import parameter_count
from tests.compiler.inspected import asked, assert_planned, inspected, sent, wide

CLUSTER, GPUS = "h100:2x4", 4
EMBED = 512
MODEL = {"layers": 4, "embed": EMBED, "heads": 8, "mlp": 1536, "vocab": 1024}
SHARDED = {"fsdp": 8, "zero": 3}
QUANTIZED = {"quantized": {"weights": "int8", "gradients": "int4"}}
ALL = {"parallel": SHARDED | {"hpz": 4} | QUANTIZED}


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


REPLICAS, SHARDS, LAYERS = 2, 4, 8
HSDP = {"replica": REPLICAS, "fsdp": SHARDS, "zero": 3, "microbatches": 2}


def shared_or_not(shared: bool) -> tuple[Config, Analysis, Report]:
    """With `parallel.overlap.shard_state_over_replicas` or without."""
    parallel: dict[str, Any] = HSDP | {"overlap": {"shard_state_over_replicas": shared}}
    config = wide(parallel=parallel, model=MODEL | {"layers": LAYERS})
    return config, *inspected(config, CLUSTER)


def between(report: Report) -> dict[str, float]:
    """Bytes of matrices that a device sends to other replicas, by collective; all of them cross the border of nodes."""
    rows = [row for row in report.collectives if row.axis == "replica"]
    assert rows and all(row.crosses_nodes for row in rows)
    return {row.collective: row.bytes for row in rows}


@pytest.mark.long
def test_half_of_each_sum_and_a_gather_in_bfloat16_are_sent_between_replicas():
    """3/4 of the bytes: of a rank's P numbers, the all-reduce of float32 sends 8P (n - 1) / n, the others 4 and 2."""
    (_, _, whole), (config, analysis, shared) = (shared_or_not(own) for own in (False, True))
    matrices = parameter_count(config.model, padded=True) - EMBED * (2 * LAYERS + 1)
    own = matrices / SHARDS * (REPLICAS - 1) / REPLICAS
    assert between(whole)["reduce_sum"] == pytest.approx(8 * own, rel=1e-3)
    assert between(shared) == {"scatter_gradient": 4 * own, "gather_weight": 2 * own}
    assert sent(shared) == dict(asked(plan_for(config, parse_cluster(CLUSTER))[0], analysis.compilation.plan))


@pytest.mark.long
def test_the_state_takes_a_replicas_share():
    (_, _, whole), (config, analysis, shared) = (shared_or_not(own) for own in (False, True))
    assert_planned(config, CLUSTER, analysis, shared)
    assert shared.classes["optimizer"] == pytest.approx(whole.classes["optimizer"] / REPLICAS, rel=0.02)
