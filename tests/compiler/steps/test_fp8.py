"""FP8 in programs compiled for H100s, MXFP8 for B200s: which products are in 8 bits, and what is sent in 8 bits."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from jaxpar.config.kinds import kind_model
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.layers.matmul_formats import dense_groups, quantised
from tests.compiler.inspected import inspected, wide

LAYOUTS: dict[str, dict[str, Any]] = {
    "fp8_current": {"fsdp": 4, "tensor": 2, "microbatches": 2},
    "fp8_delayed": {"fsdp": 8, "microbatches": 1},
    "fp8_block": {"fsdp": 8, "microbatches": 1},
    "mxfp8": {"fsdp": 8, "microbatches": 1},
}
BACKENDS = {"fp8_block": "mosaic", "mxfp8": "auto"}


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("recipe", LAYOUTS)
def test_all_products_but_the_exceptions_run_in_fp8(recipe: str):
    """FLOPs of 8-bit calls of cuBLASLt, of our kernel for tiles, or of cuDNN for MXFP8 are exactly those of three
    products for each quantised matrix and layer."""
    excepted = MatmulOptions(exclude=("head", "router"), first_layers=1, last_layers=1)
    config = wide(
        model={"layers": 5, "embed": 256, "mlp": 512}, data={"sequence_length": 128, "batch_size": 16},
        precision={"matmul": recipe, "matmul_options": replace(excepted, backend=BACKENDS.get(recipe, "auto"))},
        parallel=LAYOUTS[recipe],
    )  # fmt: skip
    analysis, report = inspected(config, "b200:1x8" if recipe == "mxfp8" else "h100:1x8")
    model = kind_model(config.model, "all")
    names = [name for matrices in quantised(config, model).values() for name in matrices]
    sizes = sum(
        part.weights[name].size for part, group in dense_groups(model) for name in group.weights if name in names
    )
    tokens = config.data.batch_size * config.data.sequence_length
    assert report.float8_flops == 3 * 2 * tokens * sizes * 3 / 8
    assert report.flops - report.float8_flops > 0
    by_precision = Counter[str]()
    for cost in analysis.costs:
        if cost.op.target == "__cublas$lt$matmul$f8":
            asked = cost.op.config["gemm_backend_config"]["precision_config"]
            assert asked["algorithm"] == "ALG_UNSET" and len(set(asked["operand_precision"])) == 1
            by_precision[asked["operand_precision"][0]] += cost.flops * cost.executions
    if recipe in BACKENDS:
        assert not by_precision
    else:  # of gradients, cuBLASLt adds up in float32
        assert by_precision == {"DEFAULT": report.float8_flops / 3, "HIGHEST": report.float8_flops * 2 / 3}
    gathers = {row.dtype for row in report.collectives if row.collective == "gather_sequence"}
    assert gathers == ({"f8e4m3fn", "f8e5m2", "bf16"} if config.parallel.tensor > 1 else set())
    weights = {row.dtype for row in report.collectives if row.collective == "gather_weight"}
    assert weights == {"bf16"} | ({"f8e4m3fn"} if recipe != "mxfp8" else set()), "the exceptions, and mxfp8"


@pytest.mark.long
def test_tensor_ranks_send_tiles_of_inputs_as_codes_and_gradients_in_the_compute_dtype():
    """Codes of a gradient along both sides would be as many bytes. Bytes that a rank sends in each product: inputs of
    attention and feed-forward forward and backward, a byte a number and a float32 for each 128."""
    excepted = MatmulOptions(exclude=("head", "router"), first_layers=0, last_layers=0)
    layers, embed, length, rows = 2, 256, 256, 16
    config = wide(
        model={"layers": layers, "embed": embed, "mlp": 512, "kv_heads": 8, "head_dim": 64},
        data={"sequence_length": length, "batch_size": rows},
        precision={"matmul": "fp8_block", "matmul_options": replace(excepted, backend="mosaic")},
        parallel={"fsdp": 4, "tensor": 2, "microbatches": 1},
    )  # fmt: skip
    _, report = inspected(config, "h100:1x8")
    sent = {
        dtype: sum(row.bytes for row in report.collectives if (row.collective, row.dtype) == ("gather_sequence", dtype))
        for dtype in ("f8e4m3fn", "f32", "bf16")
    }
    part = rows // 4 * length // 2 * embed
    assert sent["f8e4m3fn"] == 2 * 2 * layers * part and sent["f32"] == sent["f8e4m3fn"] * 4 / 128
    assert sent["bf16"] >= 2 * 2 * layers * part
