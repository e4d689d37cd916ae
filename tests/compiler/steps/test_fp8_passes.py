"""Passes over memory of a step in FP8, read from the program of llama3-8b for 8 H100s, cut to 4 layers."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from jaxpar.compiler.compile import compile_step
from jaxpar.compiler.program.costs.ops import Cost
from jaxpar.compiler.program.hlo.records import Op, leaves
from jaxpar.compiler.report import Analysis
from jaxpar.config import load_config
from jaxpar.hardware.cluster import parse_cluster

CONFIG = Path(__file__).parents[3] / "configs" / "llama3_8b.yaml"
QUANTISED, MICROBATCHES = 2, 8
"""Of the 4 layers, the first and the last are exceptions."""
MIB = 2.0**20
TOKENS, WIDTH = 8192, 14336


@cache
def analysis() -> Analysis:
    cluster = parse_cluster("h100:1x8")
    config = load_config(CONFIG, ("model.layers=4", "precision.matmul=fp8_delayed"))
    compilation = compile_step(config, cluster)
    return Analysis(compilation, cluster, strict=True)


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
    """By (MiB read, MiB written), how many there are of a quantised layer."""
    sizes = Counter((round(cost.read_bytes / MIB), round(cost.written_bytes / MIB)) for cost in found)
    return {size: count / QUANTISED for size, count in sizes.items()}


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
def test_swiglu_and_quantising_its_output_are_one_fusion():
    """It reads up and gate, and writes codes and nothing else: no hidden activation in bfloat16."""
    hidden = TOKENS * WIDTH
    found = [
        cost for cost in passes() if codes(cost.op) == [("f8e4m3fn", hidden)] and cost.read_bytes > cost.written_bytes
    ]
    assert len(found) == QUANTISED
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
