"""Rows of the embedding in the program for H100s: what they send in place of the table, and of how many tokens."""

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.report import Report
from jaxpar.hardware.cluster import parse_cluster
from tests.compiler.inspected import asked, inspected, sent, wide

CLUSTER = "h100:1x4"
TOKENS, EMBED, VOCAB, RANKS, MICROBATCHES = 64, 128, 512, 4, 2


def step(messages: str) -> Report:
    """Of ZeRO-3, with a row of 64 tokens in a microbatch."""
    parallel = {"fsdp": RANKS, "zero": 3, "microbatches": MICROBATCHES, "overlap": {"embedding_messages": messages}}
    config = wide(parallel=parallel, data={"batch_size": RANKS * MICROBATCHES})
    analysis, report = inspected(config, CLUSTER)
    assert sent(report) == dict(asked(plan_for(config, parse_cluster(CLUSTER))[0], analysis.compilation.plan))
    return report


@pytest.mark.long
def test_rows_travel_in_compute_dtype_and_the_table_and_its_gradient_do_not():
    rows, table = step("rows"), step("table")
    of_rows = MICROBATCHES * 2 * TOKENS * EMBED * (RANKS - 1) / RANKS
    found, before = sent(rows), sent(table)
    assert found["gather_rows", "fsdp"] == found["scatter_rows", "fsdp"] == of_rows
    whole = MICROBATCHES * VOCAB * EMBED * (RANKS - 1) / RANKS
    assert before["gather_weight", "fsdp"] - found["gather_weight", "fsdp"] == 2 * whole
    assert before["scatter_gradient", "fsdp"] - found["scatter_gradient", "fsdp"] == 4 * whole
    tables = [row for row in rows.exposures if {"gather_weight", "scatter_gradient"} & set(row.collectives.split("+"))]
    assert not [row for row in tables if row.source.startswith("jaxpar/model/embedding.py")]
