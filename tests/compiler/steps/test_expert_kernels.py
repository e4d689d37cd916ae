"""A training step whose experts' products are a kernel's, as XLA's GPU compiler makes it."""

import re
from collections import defaultdict
from math import prod

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.program.hlo.records import leaves
from jaxpar.compiler.report import Analysis
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.memory.estimate import estimate_memory
from tests.compiler.inspected import inspected, wide
from tests.small_run import with_experts

LAYERS, EMBED, WIDTH, EXPERTS, PER_TOKEN = 2, 256, 512, 16, 2
"""Experts are split over four ranks, and their width over two."""
TOKENS = 16 * 256 // 4
"""Of a microbatch on one device, those of its tensor ranks joined."""
DENSE = TOKENS * PER_TOKEN * 4 * (EXPERTS // 4) * min(EMBED, WIDTH // 2)
"""Numbers of a row for each expert."""


def largest_of(analysis: Analysis) -> int:
    """Numbers of the largest array of a program."""
    return max(prod(leaf.dims) for cost in analysis.costs for leaf in leaves(cost.op.shape))


@pytest.mark.long
@pytest.mark.parametrize(
    ("backend", "recipe", "tiles"),
    [
        ("mosaic", None, ""),
        ("triton", None, ""),
        ("mosaic", "fp8_block", "mosaic"),
        ("mosaic", "fp8_block", "xla"),
        ("mosaic", "fp8_current", "mosaic"),
        ("mosaic", "fp8_delayed", "mosaic"),
    ],
)
def test_the_kernels_are_in_the_step_and_no_product_is_dense(backend: str, recipe: str | None, tiles: str):
    """There is room for all tokens of all ranks, of which an even load fills a quarter: that much is multiplied. In FP8
    outputs and gradients of rows are products of 8 bits where a kernel has them, and with scales of tiles also
    gradients of matrices."""
    check_step(backend, recipe, tiles, "h100:1x8")


@pytest.mark.long
def test_the_kernels_for_blackwell_are_in_the_step():
    check_step("mosaic", None, "", "b200:1x8")


def check_step(backend: str, recipe: str | None, tiles: str, cluster: str) -> None:
    """Compile a step of a cluster, and look for the kernels, their work and dense products."""
    excepted = MatmulOptions(("attention_in", "attention_out"), first_layers=0, last_layers=0, backend=tiles or "auto")
    layout = {"expert": 4, "tensor": 2, "experts": {"backend": backend, "exchange": "all_to_all"}}
    config = wide(
        model={"layers": LAYERS, "embed": EMBED, "experts": ExpertsConfig(EXPERTS, PER_TOKEN, WIDTH)},
        parallel=with_experts(layout, capacity=4.0),
        precision={"matmul": recipe, "matmul_options": excepted} if recipe else {},
        data={"sequence_length": 256, "batch_size": 16},
    )  # fmt: skip
    analysis, report = inspected(config, cluster)
    one = 2 * TOKENS * PER_TOKEN * EMBED * WIDTH / 2
    runs: defaultdict[tuple[str, float], float] = defaultdict(float)
    for cost in analysis.costs:
        if cost.flops and (name := re.search(r"grouped_matmul_(\w+)", cost.op.op_name)):
            runs[name[1], cost.flops / one] += cost.executions
    rows = "of_tiles" if tiles == "mosaic" else "of_rows"
    weights = "of_weight_tiles" if tiles == "mosaic" and recipe == "fp8_block" else "of_weights"
    assert runs == {(rows, 1): 6 * LAYERS, (weights, 1): 3 * LAYERS}, "nothing runs twice"
    assert report.float8_flops == one * sum(number for (name, _), number in runs.items() if name.endswith("tiles"))
    assert largest_of(analysis) < DENSE, "nothing is as large as a row for each expert"
    filled, _ = plan_for(config, parse_cluster(cluster))
    assert report.allocated_bytes <= estimate_memory(filled, analysis.compilation.plan).device
