"""Which plans merge matmuls that share an operand."""

from typing import Any

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config.plan import Plan
from jaxpar.hardware.cluster import parse_cluster
from tests.small_run import small

LARGE = {"embed": 4096, "heads": 32, "kv_heads": 8, "mlp": 14_336, "layers": 2}
"""Llama-3 8B's layers: queries, keys and values are separate products of 8,192 tokens."""


def planned(cluster: str, *, rows: int = 8, model: dict[str, Any] = LARGE, **parallel: int) -> Plan:
    config = small(
        model=model,
        parallel=parallel or {"fsdp": 8},
        data={"sequence_length": 8192, "batch_size": rows},
        precision={"compute": "bfloat16"},
        attention={"backend": "xla"},
    )
    return plan_for(config, parse_cluster(cluster))[1]


def test_products_that_fill_the_gpu_are_not_merged():
    assert planned("h100:1x8").merged_matmuls_mb == 0


@pytest.mark.parametrize(
    ("cluster", "asked"),
    [
        ("h100:1x8", {"model": LARGE | {"kv_heads": 4}}),  # 64 tiles of a key's gradient on 132 multiprocessors
        ("a100-80:1x8", {}),  # 128 tiles on 108: the second wave has 20
        ("h100:1x8", {"fsdp": 4, "tensor": 2}),  # rings
        ("h100:1x8", {"rows": 1, "context": 8}),  # 1,024 tokens: 32 tiles of a key
    ],
)
def test_products_that_leave_a_part_idle_are_merged_as_xla_does(cluster: str, asked: dict[str, Any]):
    assert planned(cluster, **asked).merged_matmuls_mb is None
