"""Anchors: what measured runs of jaxpar change about predictions on their system."""

import json
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import pytest

from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout import plan_file
from jaxpar.observe.environment import ENVIRONMENT_FILE
from jaxpar.observe.events import Summary
from jaxpar.observe.writers.summary import SUMMARY_FILE
from jaxpar.planner.anchors import read_anchors
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.step_time.interval import PUBLISHED
from tests.planner.spaces import model_of, search_of
from tests.sentences import refused


@pytest.fixture(scope="module")
def planned() -> Planned:
    return search_of(model_of(data={"batch_size": 64})).best(1)[0]


def run(folder: Path, planned: Planned, slower: float, **devices: Any) -> Path:
    """The folder of a run of a plan that took `slower` times what was predicted."""
    folder.mkdir(exist_ok=True)
    step = slower * planned.candidate.seconds
    summary = Summary(10, 1.0, None, None, 640, 10 * step, 1.0, step, step, None, None)
    (folder / SUMMARY_FILE).write_text(json.dumps(vars(summary)))
    cluster = planned.cluster
    found = {"platform": "gpu", "kind": "NVIDIA H100 80GB HBM3", "count": cluster.devices}
    found |= {"per_host": cluster.gpus_per_host} | devices
    (folder / ENVIRONMENT_FILE).write_text(json.dumps({"devices": found}))
    plan_file.write(folder / "plan.json", planned.file(cluster.name))
    return folder


def test_a_measured_run_moves_times_towards_it_and_narrows_the_interval(tmp_path: Path, planned: Planned):
    spread, line = read_anchors([run(tmp_path / "a", planned, 1.2)], planned.cluster)
    assert "1 measured run took 20.0% more time than predicted" in line, "its plan is timed as it was"
    assert 1.03 < spread.factor < 1.2
    after = planned.on(spread)
    assert after.candidate.seconds == pytest.approx(spread.factor * planned.candidate.seconds)
    assert sum(after.candidate.time.breakdown.values()) == pytest.approx(after.candidate.seconds)
    assert after.spread is not None and planned.spread is not None
    assert after.spread.interval(1.0)[1] < planned.spread.interval(1.0)[1]


def test_two_runs_count_by_their_mean_and_more_than_one(tmp_path: Path, planned: Planned):
    folders = [run(tmp_path / name, planned, slower) for name, slower in (("a", 1.1), ("b", 1.3))]
    (both, line), (one, _) = (read_anchors(each, planned.cluster) for each in (folders, folders[:1] * 2))
    assert line.startswith("2 measured runs took 19.6% more"), "the geometric mean"
    assert one.factor < both.factor
    once, many = (PUBLISHED.measured([0.1] * number) for number in (1, 10))
    assert 0 < once.shift < many.shift < 0.1 and many.width == once.width == PUBLISHED.beside
    assert PUBLISHED.measured([]) == PUBLISHED


def test_an_anchor_narrows_no_further_than_left_out_runs_are_apart():
    assert PUBLISHED.beside < PUBLISHED.alone
    low, high = PUBLISHED.measured([0.0] * 50).interval(1.0)
    assert (low, high) == pytest.approx((exp(-PUBLISHED.beside), exp(PUBLISHED.beside)))


def test_what_cannot_be_an_anchor_is_refused(tmp_path: Path, planned: Planned):
    with refused("--measured", "nowhere", "expected the folder of a run"):
        read_anchors([tmp_path / "nowhere"], planned.cluster)
    with refused("--measured", SUMMARY_FILE, "expected two steps or more"):
        read_anchors([tmp_path], planned.cluster)
    folder = run(tmp_path / "a", planned, 1.0)
    with refused("--measured", "measured on NVIDIA H100", "A100-SXM-80GB"):
        read_anchors([folder], parse_cluster("a100-80:1x8"))
    (folder / ENVIRONMENT_FILE).write_text("{}")
    with refused("--measured", ENVIRONMENT_FILE, "devices"):
        read_anchors([folder], planned.cluster)


def test_a_run_on_fewer_hosts_is_timed_on_these(tmp_path: Path, planned: Planned):
    """As the same plan is, on a cluster of more hosts."""
    larger = replace(parse_cluster("h100:4x8"), gpus_per_host=planned.cluster.gpus_per_host)
    spread, _ = read_anchors([run(tmp_path / "a", planned, 1.5)], larger)
    assert log(spread.factor) == pytest.approx(PUBLISHED.measured([log(1.5)]).shift, abs=0.01)
