"""The compiled program moves and multiplies what the code asked for, on eleven layouts."""

from typing import Any

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.report import Report
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
    blocks = 2 * plan.axes.context if plan.axes.context > 1 else 1  # of a ring; those after a query's are skipped
    pairs = data.batch_size * data.sequence_length**2 * (blocks + 1) // (2 * blocks)
    model_flops = flops_per_step(model, tokens, {model.window: pairs}, model.vocab or 0) / plan.axes.devices
    assert report.flops - report.recompute_flops == pytest.approx(model_flops, rel=0.01)

    classes = sum(size for kind, size in report.classes.items() if kind != "host")
    assert classes == pytest.approx(report.peak_bytes, rel=0.02)
    assert analysis.compilation.memory.peak == report.peak_bytes


HOST = "h100:1x4"
TOKENS, EMBED, VOCAB, RANKS, MICROBATCHES = 64, 128, 512, 4, 2


def of_messages(messages: str) -> Report:
    """A step of ZeRO-3, with a row of 64 tokens in a microbatch."""
    parallel = {"fsdp": RANKS, "zero": 3, "microbatches": MICROBATCHES, "overlap": {"embedding_messages": messages}}
    config = wide(parallel=parallel, data={"batch_size": RANKS * MICROBATCHES})
    analysis, report = inspected(config, HOST)
    assert sent(report) == dict(asked(plan_for(config, parse_cluster(HOST))[0], analysis.compilation.plan))
    return report


@pytest.mark.long
def test_rows_travel_in_compute_dtype_and_the_table_and_its_gradient_do_not():
    rows, table = of_messages("rows"), of_messages("table")
    of_rows = MICROBATCHES * 2 * TOKENS * EMBED * (RANKS - 1) / RANKS
    found, before = sent(rows), sent(table)
    assert found["gather_rows", "fsdp"] == found["scatter_rows", "fsdp"] == of_rows
    whole = MICROBATCHES * VOCAB * EMBED * (RANKS - 1) / RANKS
    assert before["gather_weight", "fsdp"] - found["gather_weight", "fsdp"] == 2 * whole
    assert before["scatter_gradient", "fsdp"] - found["scatter_gradient", "fsdp"] == 4 * whole
    tables = [row for row in rows.exposures if {"gather_weight", "scatter_gradient"} & set(row.collectives.split("+"))]
    assert not [row for row in tables if row.source.startswith("jaxpar/model/embedding.py")]
