"""Configurations for clusters, compiled: how long they wait for messages (docs/overlap.md)."""

from pathlib import Path

import pytest

from jaxpar.compiler.compile import compile_step
from jaxpar.compiler.report import Analysis, Report
from jaxpar.config import load_config
from jaxpar.hardware.cluster import parse_cluster
from tests.compiler.inspected import report_of

CONFIGS = Path(__file__).parents[3] / "configs"


def compiled(file: str, on: str, *overrides: str) -> Report:
    cluster = parse_cluster(on)
    config = load_config(CONFIGS / f"{file}.yaml", overrides)
    compilation = compile_step(config, cluster)
    return report_of(Analysis(compilation, cluster))


TENSOR = ("parallel.fsdp=32", "parallel.tensor=8", "parallel.overlap.collectives_at_once=2")


@pytest.mark.long
@pytest.mark.timeout(590)
@pytest.mark.parametrize(
    ("file", "on", "overrides", "waited", "copied"),
    [
        pytest.param("llama3_8b", "h100:1x8", (), 0.03, 0.01, id="8B on a host"),
        pytest.param("llama3_8b", "h100:4x8", ("data.batch_size=256",), 0.04, 0.01, id="8B on four hosts"),
        pytest.param("llama3_70b", "h100:32x8", (), 0.055, 0.012, id="70B"),
        pytest.param("llama3_70b", "h100:32x8", TENSOR, 0.205, 0.006, id="70B with 8 tensor ranks"),
        pytest.param("llama3_405b", "h100:128x8", (), 0.049, 0.023, id="405B"),
        pytest.param("gpt3_175b_32k", "h800:32x8", (), 0.057, 0.018, id="175B"),
    ],
)
def test_a_step_waits_for_what_was_reached(
    file: str, on: str, overrides: tuple[str, ...], waited: float, copied: float
):
    """`waited`: exposed transfers and what compute loses to those beside it, of a step. Copies in the device take at
    most `copied` of compute, copies to the host 1.5% of the step, and no gather of each layer's weights has the step to
    itself. docs/decisions.md has what else was compiled."""
    report = compiled(file, on, *overrides)
    assert report.fits and report.exposed_fraction <= waited
    assert sum(row.exposed_s for row in report.collectives if row.axis == "host") <= 0.015 * report.step_seconds
    assert report.seconds_by_kind["copy"] <= copied * report.compute_seconds
    assert not [
        row for row in report.exposures if row.synchronous and row.count > 20 and "gather_weight" in row.collectives
    ]
    if (file, overrides) == ("llama3_70b", ()):  # in bfloat16 the shards, and two layers that are gathered
        assert report.classes["weights"] <= 1.01 * 2 * (70_553_706_496 / 256 + 2 * 855_638_016)


@pytest.mark.long
@pytest.mark.timeout(590)
@pytest.mark.parametrize(
    ("file", "on", "overrides", "waited"),
    [
        pytest.param("qwen3_30b_a3b", "h100:2x8", (), 0.01, id="Qwen3"),
        pytest.param("deepseek_v3", "h100:16x8", ("model.layers=7",), 0.125, id="DeepSeek", marks=pytest.mark.release),
    ],
)
def test_the_exchange_of_experts_is_hidden(file: str, on: str, overrides: tuple[str, ...], waited: float):
    """With the kernel that `auto` takes where it was verified; 10% are the goal. Of DeepSeek-V3 seven layers, which
    miss it (docs/decisions.md)."""
    report = compiled(file, on, "parallel.experts.backend=mosaic", *overrides)
    found = sum(row.exposed_s for row in report.collectives if row.collective == "exchange_tokens")
    assert report.fits and 0 < found <= waited * (report.step_seconds)


@pytest.mark.long
def test_matmuls_of_8b_in_fp8_take_a_fraction_of_the_time():
    """At the peaks of the GPU, with the usual exceptions: at least 1.6 times less. FLOPs in FP8 are exactly those of
    three products for each matrix that is quantized, of all layers but the first and the last."""
    report = compiled("llama3_8b", "h100:1x8", "precision.matmul=fp8_current")
    matmuls = report.flops_by_kind["matmul"]
    assert matmuls / (matmuls - report.float8_flops / 2) >= 1.6
    embed, mlp, keys = 4096, 14336, 1024
    sizes = embed * (embed + 2 * keys) + 3 * embed * mlp  # attention_out is an exception
    assert report.float8_flops == 3 * 2 * 64 * 8192 * 30 * sizes / 8
    weights = {row.dtype: row.bytes for row in report.collectives if row.collective == "gather_weight"}
    assert weights["f8e4m3fn"] > 2 * weights["bf16"], "exceptions, embedding and head"
