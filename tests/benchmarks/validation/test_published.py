"""Published records, predicted at named layouts; and what a row of a file becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.validation.cases import BATCH, LLAMA_175B, LLAMA_405B
from benchmarks.validation.mechanisms import GENERATIONS
from benchmarks.validation.published import HELD_OUT, PUBLISHED, Run, read_runs
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.model import step_time

H800 = parse_cluster("h800:32x8")
SMALL = Layout(
    pipe=8, fsdp=4, context=2, tensor=4, schedule="interleaved", virtual_stages=12, zero=1, remat="full"
)  # fmt: skip
NARROW = replace(SMALL, pipe=16, tensor=2, virtual_stages=6)


@pytest.mark.parametrize(
    ("system", "sequence", "layout", "mfu"),
    [
        ("megatron-2024", 32768, replace(NARROW, fsdp=2, context=4), 0.323),
        ("kuaishou", 32768, replace(SMALL, virtual_stages=6, remat="none", offload_fraction=0.9), 0.427),
        ("megatron-2024", 8192, NARROW, 0.310),
        ("kuaishou", 8192, NARROW, 0.334),
        ("kuaishou", 8192, replace(NARROW, remat="gemm_last", offload_fraction=0.8), 0.432),
    ],
)
def test_175b_on_256_h800_is_predicted_within_5_percent(system: str, sequence: int, layout: Layout, mfu: float):
    """Yuan et al., USENIX ATC 2024, and its artifact; nothing was fitted to these."""
    assert layout.devices == 256
    step = step_time(LLAMA_175B, sequence, BATCH, layout, H800, GENERATIONS[system])
    assert step.mfu == pytest.approx(mfu, rel=0.05)


def test_the_gain_is_the_recomputation_that_goes():
    full = step_time(LLAMA_175B, 32768, BATCH, SMALL, H800, GENERATIONS["kuaishou"])
    balanced = replace(SMALL, remat="gemm_last", offload_fraction=0.9)
    ours = step_time(LLAMA_175B, 32768, BATCH, balanced, H800, GENERATIONS["kuaishou"])
    saved = full.breakdown["recomputation"] - ours.breakdown["recomputation"]
    assert saved > 0.75 * (full.seconds - ours.seconds)
    assert ours.breakdown["offload"] == 0


def test_405b_on_1024_h100_in_float8_is_predicted_7_percent_too_slow():
    """763 TFLOP/s per GPU, counted without a mask in attention, as 6N + 12 L E S per token: 4% more than with one.

    708 are predicted. `float8_share` is fitted to torchtitan and llm-foundry, the only software with float8 rows in the
    data; Megatron-Core, which this record is of, is faster than both.
    """
    cluster = parse_cluster("h100:128x8")
    layout = Layout(
        pipe=16, fsdp=8, context=2, tensor=4, schedule="interleaved", virtual_stages=4, zero=1, remat="gemm_last",
        precision="float8",
    )  # fmt: skip
    step = step_time(LLAMA_405B, 8192, 512, layout, cluster, GENERATIONS["megatron-core"])
    masked = step.mfu * cluster.gpu.training_peak / 1e12
    assert 1.04 * masked == pytest.approx(763, rel=0.075)


def row(source: str, **wanted: object) -> Run:
    runs = read_runs(HELD_OUT if source == "kwai_fig9" else PUBLISHED)
    return next(
        run for run in runs
        if run.source == source and all(getattr(run.layouts[0], key) == value for key, value in wanted.items())
    )  # fmt: skip


def test_a_row_holds_what_its_columns_state():
    run = row("kwai_fig9")
    assert (run.model.layers, run.model.heads, run.sequence, run.batch) == (96, 96, 4096, 256)
    layout = run.layouts[0]
    assert (layout.pipe, layout.fsdp, layout.context, layout.tensor) == (16, 4, 2, 2)
    assert (layout.schedule, layout.virtual_stages, layout.remat, layout.offload_fraction) == (
        "interleaved", 6, "none", 0.522,
    )  # fmt: skip
    assert run.cluster.devices == 256 and run.cluster.bandwidth(True) == 100e9 / 8


def test_what_was_not_published_may_have_been_anything_that_divides():
    run = row("mtnlg_530b")
    assert {layout.microbatch for layout in run.layouts} == {1, 2, 4, 8}
    virtual = {layout.virtual_stages for layout in row("megatron_sc21_t2", pipe=12).layouts}
    assert virtual == {1, 2, 4, 8}


def test_software_has_the_mechanisms_of_its_time():
    early, late = row("mtnlg_530b").mechanisms, row("vtrain_multi").mechanisms
    assert not early.overlap_weight_gradient and late.overlap_weight_gradient
    assert row("mosaic_llmfoundry", precision="float8").mechanisms.attention == "flash1"
    assert row("korthikanti_t5").mechanisms.attention == "scores"
    assert row("kwai_7b").mechanisms == GENERATIONS["kuaishou"]
