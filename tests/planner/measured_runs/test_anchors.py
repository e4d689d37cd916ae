"""Anchors: what a measured run changes about predictions on its system; and the row that a run writes of itself."""

from __future__ import annotations

import csv
from dataclasses import asdict, replace
from math import log
from pathlib import Path
from statistics import mean

import pytest

from benchmarks.validation.predict import judge
from benchmarks.validation.published import read_runs
from jaxpar.config import config_to_dict
from jaxpar.config.schema.experts import ExpertsConfig
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.observe.writers.measured_row import MEASURED_FILE, measured_row
from jaxpar.planner.measured_runs.anchors import read_anchors
from jaxpar.planner.measured_runs.table import COLUMNS, OPTIONAL
from jaxpar.planner.planning import anchored
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.step_time.interval import KNOWN, Spread, overlap
from tests.planner.spaces import model_of, search_of
from tests.sentences import refused


@pytest.fixture(scope="module")
def planned() -> Planned:
    return search_of(model_of(data={"batch_size": 64})).best(1)[0]


def row(folder: Path, planned: Planned, slower: float, **changed: str) -> Path:
    """The folder of a run of a plan that took `slower` times what was predicted."""
    config, plan = config_to_dict(planned.config), asdict(planned.plan)
    seconds = slower * planned.candidate.seconds
    cluster = planned.cluster
    cells = measured_row(config, plan, cluster.gpu.short, cluster.gpus_per_host, seconds, None, str(folder)) | changed
    assert set(COLUMNS) <= set(cells) <= {*COLUMNS, *OPTIONAL}
    with (folder / MEASURED_FILE).open("w", newline="") as stream:
        writer = csv.DictWriter(stream, cells)
        writer.writeheader()
        writer.writerow(cells)
    return folder


def test_the_row_of_a_run_holds_its_layout_and_is_timed_as_the_plan_was(tmp_path: Path, planned: Planned):
    (run,) = read_runs(row(tmp_path, planned, 1.0) / MEASURED_FILE)
    (layout,), ours = run.layouts, planned.candidate.layout
    assert (layout.pipe, layout.data, layout.context, layout.tensor, layout.microbatch, layout.zero) == (
        ours.pipe, ours.data, ours.context, ours.tensor, ours.microbatch, ours.zero
    )  # fmt: skip
    assert run.software == "jaxpar" and run.cluster.devices == planned.cluster.devices
    assert judge(run).error == pytest.approx(0, abs=0.03)


def test_the_row_of_a_run_with_experts_holds_their_ranks(tmp_path: Path):
    experts = ExpertsConfig(count=8, per_token=2, width=1024)
    config = model_of(model={"activation": "swiglu", "experts": experts}, data={"batch_size": 64})
    planned = search_of(config, expert=4, pipe=1, offload="none").best(1)[0]
    (run,) = read_runs(row(tmp_path, planned, 1.0) / MEASURED_FILE)
    (layout,) = run.layouts
    assert (layout.expert, layout.data) == (4, planned.candidate.layout.data)
    assert run.model.experts is not None
    assert (run.model.experts.count, run.model.experts.per_token, run.model.experts.width) == (8, 2, 1024)
    assert judge(run).time is not None


def test_the_row_of_a_run_names_the_kernels_of_attention(tmp_path: Path):
    plain = search_of(model_of(attention={"backend": "xla"}), pipe=1, remat="none").best(1)[0]
    (run,) = read_runs(row(tmp_path, plain, 1.0) / MEASURED_FILE)
    assert run.mechanisms.attention == "blocks"
    assert judge(run).error == pytest.approx(0, abs=0.03)


def test_runs_of_other_software_are_left_out_beside_those_of_jaxpar(tmp_path: Path, planned: Planned):
    both = tmp_path / "runs.csv"
    ours = (row(tmp_path, planned, 1.2) / MEASURED_FILE).read_text()
    theirs = (row(tmp_path, planned, 3.0, framework="torchtitan") / MEASURED_FILE).read_text().splitlines()[1]
    both.write_text(ours + theirs + "\n")
    alone = tmp_path / "ours.csv"
    alone.write_text(ours)
    found, wanted = (read_anchors(file, planned.cluster) for file in (both, alone))
    assert found.spread == wanted.spread
    assert "1 run of other software left out" in found.lines[1]


def test_runs_on_another_network_are_said_to_be(tmp_path: Path, planned: Planned):
    ranks = {"n_gpus": "16", "dp": "16", "tp": "1", "pp": "1", "cp": "1", "micro_batch_seqs": "4"}
    folder = row(tmp_path, planned, 1.0, **ranks, inter_node_gbps_per_gpu="100")
    lines = read_anchors(folder, parse_cluster("h100:2x8")).lines
    assert "linked at 12.5 GB/s a GPU, and those of h100:2x8 at 50 GB/s" in lines[-1]
    assert len(read_anchors(folder, parse_cluster("h100:1x8")).lines) == len(lines) - 1


def test_a_measured_run_moves_times_towards_it_and_narrows_the_interval(tmp_path: Path, planned: Planned):
    found = read_anchors(row(tmp_path, planned, 1.2), planned.cluster).spread
    assert 1.03 < found.factor < 1.2
    after = anchored(planned, found)
    assert after.candidate.seconds == pytest.approx(found.factor * planned.candidate.seconds)
    assert sum(after.candidate.time.breakdown.values()) == pytest.approx(after.candidate.seconds)
    width = lambda one: log(one.spread.interval(1.0)[1])
    assert width(after) < width(planned)


def test_two_runs_are_printed_by_their_mean(tmp_path: Path, planned: Planned):
    """Neither of them is in the middle."""
    fast, slow = ((row(tmp_path, planned, factor) / MEASURED_FILE).read_text().splitlines() for factor in (1.1, 1.3))
    both = tmp_path / "both.csv"
    both.write_text("\n".join([*fast, slow[1]]) + "\n")
    errors = [error for run in read_runs(both) if (error := judge(run).error) is not None]
    assert len(errors) == 2 and errors[1] - errors[0] > 0.15
    (line, *_) = read_anchors(both, planned.cluster).lines
    assert f"2 measured runs of jaxpar took {mean(errors):.1%} more time than predicted" in line


def test_more_runs_count_more():
    one, many = (KNOWN.measured([0.1] * number) for number in (1, 10))
    assert 0 < one.shift < many.shift < 0.1 and many.between < one.between < KNOWN.between
    assert KNOWN.measured([]) == KNOWN


@pytest.mark.parametrize("spread", [KNOWN, KNOWN.measured([-0.4]), replace(KNOWN, quantile=3.0)])
def test_an_interval_contains_its_point(spread: Spread):
    for seconds in (1e-3, 1.0, 500.0):
        low, high = spread.interval(seconds)
        assert low < seconds < high and spread.holds(seconds, seconds)


def test_two_plans_of_one_system_overlap_where_its_runs_alone_could_change_their_order():
    assert overlap(1.0, 1.02) and not overlap(1.0, 2.0)
    apart = 1.2 * KNOWN.interval(1.0)[1]
    alone = Spread(between=0.5, within=0.001)
    assert not overlap(1.0, apart, alone) and alone.interval(1.0)[1] > apart


def test_what_cannot_be_an_anchor_is_refused(tmp_path: Path, planned: Planned):
    with refused("--measured", str(tmp_path), MEASURED_FILE):
        read_anchors(tmp_path, planned.cluster)
    row(tmp_path, planned, 1.0)
    with refused("--measured", "no row has a time on A100-SXM-80GB", "h100"):
        read_anchors(tmp_path, parse_cluster("a100-80:1x8"))
    row(tmp_path, planned, 1.0, n_layers="many")
    with refused("no row has a time", "row 2", "n_layers"):
        read_anchors(tmp_path, planned.cluster)


def test_runs_of_other_software_alone_are_refused_with_the_command_that_predicts_them(tmp_path: Path, planned: Planned):
    row(tmp_path, planned, 1.0, framework="torchtitan")
    with refused("--measured", "framework", "torchtitan", "python -m benchmarks.validation"):
        read_anchors(tmp_path, planned.cluster)
