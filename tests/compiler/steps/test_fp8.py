"""FP8 in programs compiled for H100s, MXFP8 for B200s: which products are in 8 bits, and what is sent in 8 bits."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from jaxpar.compiler.compile import compile_step
from jaxpar.compiler.program.costs.ops import Cost
from jaxpar.compiler.program.hlo.records import Op, leaves
from jaxpar.compiler.report import Analysis
from jaxpar.config import load_config
from jaxpar.config.kinds import kind_model
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.matmul_formats import dense_groups, quantized_matrices
from tests.compiler.inspected import inspected, report_of, wide

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
    products for each quantized matrix and layer."""
    excepted = MatmulOptions(exclude=("head", "router"), first_layers=1, last_layers=1)
    config = wide(
        model={"layers": 5, "embed": 256, "mlp": 512}, data={"sequence_length": 128, "batch_size": 16},
        precision={"matmul": recipe, "matmul_options": replace(excepted, backend=BACKENDS.get(recipe, "auto"))},
        parallel=LAYOUTS[recipe],
    )  # fmt: skip
    analysis, report = inspected(config, "b200:1x8" if recipe == "mxfp8" else "h100:1x8")
    model = kind_model(config.model, "all")
    names = [name for matrices in quantized_matrices(config, model).values() for name in matrices]
    sizes = sum(
        part.weights[name].size for part, group in dense_groups(model) for name in group.weights if name in names
    )
    tokens = config.data.batch_size * config.data.sequence_length
    assert report.float8_flops == 3 * 2 * tokens * sizes * 3 / 8 and report.flops - report.float8_flops > 0
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


CONFIG = Path(__file__).parents[3] / "configs" / "llama3_8b.yaml"
QUANTIZED, MICROBATCHES = 2, 8
"""The first and the last of the 4 layers are exceptions."""
MIB = 2.0**20
TOKENS, WIDTH = 8192, 14336


@cache
def analysis() -> Analysis:
    cluster = parse_cluster("h100:1x8")
    config = load_config(CONFIG, ("model.layers=4", "precision.matmul=fp8_delayed"))
    compilation = compile_step(config, cluster)
    found = Analysis(compilation, cluster)
    report_of(found)
    return found


def passes() -> Iterator[Cost]:
    """Elementwise ops and copies of a MiB and more in the loop over microbatches; rows that are read from stacks are
    none of the layers'."""
    for cost in analysis().costs:
        moved = cost.read_bytes + cost.written_bytes
        if cost.kind in ("elementwise", "copy") and cost.executions == MICROBATCHES and moved >= MIB:
            yield cost


def codes(op: Op) -> list[tuple[str, int]]:
    """(format, elements) of the codes that an op writes."""
    return [(leaf.dtype, leaf.elements) for leaf in leaves(op.shape) if leaf.dtype.startswith("f8")]


def of_layer(found: list[Cost]) -> dict[tuple[int, int], float]:
    """By (MiB read, MiB written), how many there are of a quantized layer."""
    sizes = Counter((round(cost.read_bytes / MIB), round(cost.written_bytes / MIB)) for cost in found)
    return {size: count / QUANTIZED for size, count in sizes.items()}


def writing() -> list[Cost]:
    """Passes that write codes."""
    return [cost for cost in passes() if codes(cost.op) and "dynamic_slice" not in cost.op.op_name]


@pytest.mark.long
def test_a_layer_has_so_many_passes_that_write_codes():
    """Matrices, inputs and gradients: (MiB read, MiB written), and the number of such passes."""
    assert of_layer(writing()) == {
        (16, 16): 1, (4, 4): 2, (56, 56): 3,  # matrices, transposed
        (64, 32): 3, (448, 112): 1,  # inputs: with the norm, with SwiGLU; and the query's gradient
        (64, 64): 1, (16, 8): 1, (32, 16): 1,  # gradients of outputs
        (672, 336): 1,  # of up and gate, with SwiGLU's output
        (224, 224): 1, (32, 32): 1, (8, 8): 1, (128, 64): 1,  # what gradients of matrices multiply, transposed
    }  # fmt: skip
    alone = [
        cost for cost in passes()
        if cost.op.op_name.endswith("checkpoint/reduce_max") and cost.written_bytes < MIB and not codes(cost.op)
    ]  # fmt: skip
    assert len(alone) == 7 and sum(cost.read_bytes for cost in alone) / MIB == pytest.approx(416, abs=1)


@pytest.mark.long
def test_swiglu_and_quantizing_its_output_are_one_fusion():
    """It reads up and gate, and writes codes and nothing else: no hidden activation in bfloat16."""
    hidden = TOKENS * WIDTH
    found = [
        cost for cost in passes() if codes(cost.op) == [("f8e4m3fn", hidden)] and cost.read_bytes > cost.written_bytes
    ]
    assert len(found) == QUANTIZED
    for cost in found:
        inside = {op.opcode for op in analysis().module.body(cost.op).ops}
        assert {"exponential", "multiply", "clamp", "convert"} <= inside, "SwiGLU and the cut-off at the largest code"
        assert cost.written_bytes == hidden and round(cost.read_bytes / hidden) == 4


@pytest.mark.long
def test_gradients_of_the_feed_forwards_matrices_are_not_converted():
    """They leave their products in float32, in which they accumulate."""
    matrix = 4096 * WIDTH
    wide = lambda op: any((leaf.dtype, leaf.elements) == ("f32", matrix) for leaf in leaves(op.shape))
    assert not [cost.op.name for cost in passes() if cost.kind == "copy" and wide(cost.op)]
