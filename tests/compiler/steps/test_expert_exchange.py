"""Experts in the program for H100s: exchanges by name with the bytes of their formulas, FLOPs of the rows there are,
and the kernels of their products."""

import re
from collections import defaultdict
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.compiler.program.hlo.records import leaves
from jaxpar.compiler.report import Analysis
from jaxpar.compiler.report.layer_schedule import layer_schedules
from jaxpar.config import Config
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layers.experts.messages import messages_of, row_bytes_of_ways
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.memory.layer_shape import layer_shapes
from jaxpar.model.flops import causal_pairs, flops_per_step
from tests.compiler.inspected import inspected, wide
from tests.small_run import with_experts

pytestmark = pytest.mark.long

CLUSTER = "h100:1x8"
LAYERS, MICROBATCHES = 2, 2
SENT = {"all to all in codes": "float8_e4m3fn"}
SCATTERS = {
    "exchange_tokens": "exchange_tokens",
    "gather_sequence": "scatter_sequence",
    "gather_tokens": "scatter_tokens",
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "all to all": {"expert": 4, "fsdp": 2, "experts": {"exchange": "all_to_all"}},
    "all gather": {"expert": 4, "fsdp": 2, "experts": {"exchange": "all_gather"}},
    "all to all in codes": {"expert": 4, "fsdp": 2, "experts": {"exchange": "all_to_all"}},
    "tensor ranks": {"expert": 2, "fsdp": 2, "tensor": 2, "experts": {"exchange": "all_to_all"}},
}


def config_of(layout: str) -> Config:
    """Room for half as much again as an even share, so that there is a loop of further rounds."""
    experts = ExpertsConfig(count=8, per_token=2, width=1024, balance_loss=0.0)
    return wide(
        model={"layers": LAYERS, "embed": 512, "mlp": 1024, "vocab": 4096, "experts": experts},
        parallel=with_experts(LAYOUTS[layout], capacity=1.5)
        | {"microbatches": MICROBATCHES, "quantized": {"tokens": SENT.get(layout)}},
        data={"sequence_length": 1024, "batch_size": 16},
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_exchange_has_its_name_and_the_bytes_of_its_formula(layout: str):
    config = config_of(layout)
    analysis, report = inspected(config, CLUSTER)
    filled, _ = plan_for(config, parse_cluster(CLUSTER))
    plan = analysis.compilation.plan
    (shape,) = layer_shapes(filled, plan.axes, plan.microbatch_rows).values()
    experts, chosen = shape.model.experts, plan.experts["all"]
    assert experts is not None
    bytes_of_row = row_bytes_of_ways(shape.embed, shape.item_bytes, SENT.get(layout))
    assert bytes_of_row == (4 if layout not in SENT else 3 + (1 + 2 / 256) / 2) * shape.embed * 2
    rows = shape.part_tokens * LAYERS * MICROBATCHES
    found = {}
    for row in report.collectives:
        if row.dtype in ("bf16", "u8"):
            found[row.collective] = found.get(row.collective, 0.0) + row.bytes
    for one in messages_of(chosen.exchange.name, experts, chosen.capacity, plan.axes.expert, plan.axes.tensor):
        if one.name != "gather_sequence":  # attention sends it too
            both = {one.name, SCATTERS[one.name]}
            wanted = one.sent * rows * bytes_of_row  # before the rows of a list, 714 of them, are a multiple of 8
            assert sum(found[name] for name in both) == pytest.approx(wanted, rel=0.01), found


def test_flops_are_those_of_the_rows_that_are_expected():
    """All that is not recomputed is the model's, with attention's masked half: no dense expansion over experts."""
    config = config_of("all to all")
    _, report = inspected(config, CLUSTER)
    model, data = plan_for(config, parse_cluster(CLUSTER))[0].model, config.data
    tokens = data.batch_size * data.sequence_length
    every_pair = dict.fromkeys(causal_pairs(model, tokens, data.sequence_length), tokens * data.sequence_length)
    wanted = flops_per_step(model, tokens, every_pair, model.vocab or 0) / 8
    assert report.flops - report.recompute_flops == pytest.approx(wanted, rel=0.02)


def test_the_layers_of_the_page_are_not_the_rounds_that_a_balanced_step_never_runs():
    """A layer's body contains the loop over further rounds, whose products are the same. XLA unrolls two layers."""
    config = config_of("all to all")
    parallel = replace(
        config.parallel, experts=replace(config.parallel.experts, backend="mosaic", capacity=2.0), microbatches=1
    )
    analysis, _ = inspected(replace(config, model=replace(config.model, layers=3), parallel=parallel), CLUSTER)
    forward, backward = layer_schedules(analysis)
    assert (forward.title, backward.title) == ("Forward", "Backward")
    for one in (forward, backward):
        assert one.executions and "matmul" in {box.kind for box in one.boxes}
        assert any("exchange_tokens" in box.label for box in one.boxes)


EMBED, WIDTH, EXPERTS, PER_TOKEN = 256, 512, 16, 2
"""Experts are split over four ranks, and their width over two."""
TOKENS = 16 * 256 // 4
"""Tokens of a microbatch on one device, those of its tensor ranks joined."""
DENSE = TOKENS * PER_TOKEN * 4 * (EXPERTS // 4) * min(EMBED, WIDTH // 2)
"""Numbers of a row for each expert."""


def largest_of(analysis: Analysis) -> int:
    """Numbers of the largest array of a program."""
    return max(prod(leaf.dims) for cost in analysis.costs for leaf in leaves(cost.op.shape))


@pytest.mark.parametrize(
    ("backend", "recipe", "tiles"),
    [
        ("mosaic", None, ""), ("triton", None, ""), ("mosaic", "fp8_block", "mosaic"), ("mosaic", "fp8_block", "xla"),
        ("mosaic", "fp8_current", "mosaic"), ("mosaic", "fp8_delayed", "mosaic"),
    ],
)  # fmt: skip
def test_the_kernels_are_in_the_step_and_no_product_is_dense(backend: str, recipe: str | None, tiles: str):
    """There is room for all tokens of all ranks, of which an even load fills a quarter: that much is multiplied. In FP8
    outputs and gradients of rows are products of 8 bits where a kernel has them, and with scales of tiles also
    gradients of matrices."""
    check_step(backend, recipe, tiles, CLUSTER)


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
