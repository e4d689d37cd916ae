"""What the benchmark of the planner fits: no source is judged by numbers that were set by looking at it."""

from __future__ import annotations

from collections import defaultdict

import pytest

from benchmarks.validation.cases import best_of_ours
from benchmarks.validation.fit import CURRENT, FITTED, PRIORS, START, alone, behind, slopes
from benchmarks.validation.published import PUBLISHED, Run, read_runs
from jaxpar.config.presets import PRESETS
from jaxpar.cost.hardware_model import AMPERE, HOPPER
from jaxpar.cost.operations import ATTENTION_BACKWARD
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.cluster import parse_cluster


@pytest.mark.parametrize(
    ("kind", "name", "gpu", "share"),
    [
        ("ampere", "attention_first_share", "a100-80", (0.25 + 0.40) / 2),
        ("ampere", "attention_share", "a100-80", (0.50 + 0.73) / 2),
        ("hopper", "attention_first_share", "h100", (0.25 + 0.40) / 2 * 312 / 989.4 * 335 / 203),
        ("hopper", "attention_share", "h100", 0.35),
    ],
)
def test_priors_of_attention_are_what_others_measured_of_the_kernels(kind: str, name: str, gpu: str, share: float):
    """FLOPs of both ways over their time, of heads of 128: FlashAttention-2's paper, and FlashAttention-3's."""
    width, peak = 128, gpu_named(gpu).training_peak
    exponentials = {"ampere": AMPERE, "hopper": HOPPER}[kind].exponentials
    value, cited = PRIORS[kind, name]
    seconds = (4 * width + 10 * width / ATTENTION_BACKWARD) / (peak * value) + 2 / exponentials
    assert 14 * width / seconds / peak == pytest.approx(share, rel=0.02)
    assert "arXiv" in cited


def test_what_one_source_alone_decides_begins_at_a_cited_prior():
    """Left out, that source would else be predicted by a value that somebody chose with it in view."""
    few: dict[object, list[Run]] = defaultdict(list)
    for run in read_runs(PUBLISHED):
        like = (run.source, run.cluster.gpu.short, run.layouts[0].precision, run.mechanisms.attention)
        if run.tokens_per_s_per_gpu is not None and len(few[like]) < 2:
            few[like].append(run)
    rows = behind(slopes([run for runs in few.values() for run in runs], CURRENT))
    decided = {key for key in rows if len(rows[key]) == 1}
    assert decided <= set(PRIORS), "begins at a value without a citation"
    assert alone(rows) and all(rows.values()), "every parameter makes a difference somewhere"
    assert all((kind, name) in PRIORS or name in START for kind, name, *_ in FITTED)


def test_what_is_shown_of_jaxpar_is_what_its_planner_finds():
    """In a type that it has, and within the memory of hosts."""
    cluster = parse_cluster("h800:1x8")
    found = best_of_ours(PRESETS["llama3-8b"], 8192, cluster, batch=16)
    assert found.layout.precision == "bfloat16" and found.layout.devices == 8
    assert found.host <= cluster.host_limit() * cluster.gpus_per_host
    assert found.memory < cluster.device_bytes
