"""FP8 matmuls in programs compiled for H100s: which products run in 8 bits, and what tensor ranks send in 8 bits."""

from __future__ import annotations

from typing import Any

import pytest

from jaxpar.config.kinds import kind_model
from jaxpar.config.schema.layout import MatmulExcept
from jaxpar.layers.matmul_formats import dense_groups, quantised
from tests.compiler.inspected import inspected, wide

LAYOUTS: dict[str, dict[str, Any]] = {
    "fp8_current": {"fsdp": 4, "tensor": 2, "microbatches": 2},
    "fp8_delayed": {"fsdp": 8, "microbatches": 1},
}


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("recipe", LAYOUTS)
def test_all_products_but_the_exceptions_run_in_fp8(recipe: str):
    """FLOPs of calls of cuBLASLt in 8 bits are exactly those of three products for each quantised matrix and layer."""
    excepted = MatmulExcept(parts=("head", "router"), first_layers=1, last_layers=1)
    config = wide(
        model={"layers": 5, "embed": 256, "mlp": 512}, data={"sequence_length": 128, "batch_size": 16},
        precision={"matmul": recipe, "matmul_except": excepted}, parallel=LAYOUTS[recipe],
    )  # fmt: skip
    analysis, report = inspected(config, "h100:1x8")
    model = kind_model(config.model, "")
    names = [name for matrices in quantised(config, model).values() for name in matrices]
    sizes = sum(
        part.weights[name].size for part, group in dense_groups(model) for name in group.weights if name in names
    )
    tokens = config.data.batch_size * config.data.sequence_length
    assert report.float8_flops == 3 * 2 * tokens * sizes * 3 / 8
    assert report.flops - report.float8_flops > 0
    del analysis
    gathers = {row.dtype for row in report.collectives if row.collective == "gather_sequence"}
    assert gathers == ({"f8e4m3fn", "f8e5m2", "bf16"} if config.parallel.tensor > 1 else set())
    weights = {row.dtype for row in report.collectives if row.collective == "gather_weight"}
    assert weights == {"f8e4m3fn", "bf16"}, "the exceptions"
