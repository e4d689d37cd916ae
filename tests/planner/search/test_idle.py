"""Hosts that are left idle."""

import json
from pathlib import Path

import pytest

from jaxpar.config.reading.loading import config_to_yaml
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.plan import main
from jaxpar.planner.planning import best_with_idle_hosts
from jaxpar.planner.search.idle import fewer_hosts
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from tests.planner.spaces import model_of
from tests.sentences import refused

CONFIG = model_of(data={"batch_size": 48})


def test_a_cluster_many_times_too_large_is_no_slower_than_a_part_of_it():
    config = model_of(data={"batch_size": 8, "sequence_length": 1024})
    few, many = (best_with_idle_hosts(Search(Space(config, parse_cluster(f"h100:{hosts}x2"))), 1) for hosts in (4, 192))
    assert many[1][0].candidate.seconds <= few[1][0].candidate.seconds
    assert many[0].cluster.hosts < 20 and many[2] is not None


def test_numbers_of_hosts_that_split_well_are_tried():
    assert fewer_hosts(9) == list(range(8, 0, -1))
    assert {225, 240, 243, 250, 128, 96} <= set(fewer_hosts(256)) and len(fewer_hosts(256)) < 32
    assert {810, 864, 900, 960, 972, 1000} <= set(fewer_hosts(1024))


def test_the_fastest_number_of_hosts_is_found():
    """Against the best layout of each number, searched alone."""
    seconds = {
        hosts: Search(Space(CONFIG, parse_cluster(f"h100:{hosts}x2"))).best(1)[0].candidate.seconds
        for hosts in (4, 5, 6, 7)
    }
    other, plans, sentence = best_with_idle_hosts(Search(Space(CONFIG, parse_cluster("h100:7x2"))), 2)
    assert other.cluster.hosts == min(seconds, key=lambda hosts: seconds[hosts])
    assert plans[0].candidate.seconds == min(seconds.values()) and len(plans) == 2
    assert sentence is not None and f"{7 - other.cluster.hosts} of 7 hosts are left idle" in sentence


def test_the_plan_of_a_cluster_on_which_nothing_runs_leaves_hosts_idle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Rows cannot be split over 7 hosts; tensor, context and pipe are fixed."""
    (tmp_path / "model.yaml").write_text(config_to_yaml(model_of(data={"batch_size": 4})))
    fixed = [part for name in ("tensor", "context", "pipe") for part in ("--fix", f"{name}=1")]
    arguments = ["--config", str(tmp_path / "model.yaml"), "--out", str(tmp_path / "plan.json"), "--no-verify", *fixed]
    assert main([*arguments, "--cluster", "h100:7x1"]) == 0
    printed = capsys.readouterr().out
    assert "of 7 hosts are left idle: on all of them, no layout of 7 GPUs" in printed
    assert json.loads((tmp_path / "plan.json").read_text())["predicted"]["hosts"] in (1, 2, 4)
    with refused("no layout of 7 GPUs"):
        best_with_idle_hosts(
            Search(Space(model_of(data={"batch_size": 4}), parse_cluster("h100:7x1"), {"tensor": "7"})), 1
        )


@pytest.mark.parametrize(("cluster", "rows"), [("h100:2x3", 12), ("h100:3x7", 12), ("h100:5x1", 6), ("h100:4x8", 4)])
def test_hosts_of_three_or_seven_gpus_prime_counts_and_more_gpus_than_rows_have_a_plan(cluster: str, rows: int):
    """8 heads are no multiple of 3, 5 or 7: what is left idle is said, or every GPU is used."""
    given = parse_cluster(cluster)
    search, plans, sentence = best_with_idle_hosts(Search(Space(model_of(data={"batch_size": rows}), given)), 1)
    plan = plans[0].plan
    assert plan.axes.devices == search.cluster.devices <= given.devices
    assert rows == plan.axes.data * plan.microbatches * plan.microbatch_rows
    assert (sentence is None) == (search.cluster.hosts == given.hosts)


def test_a_search_does_little_for_each_mesh_and_searches_on_fewer_hosts_repeat_little():
    """Counts, not seconds. Work on layers is counted once for all numbers of hosts."""
    search = Search(Space(model_of(data={"batch_size": 60}), parse_cluster("h100:15x4")))
    best = search.best(1)[0].candidate.seconds
    effort = search.effort
    assert effort.bounded < 10 * effort.groups and effort.simulated < 2 * effort.groups and effort.timed < 10
    fewer = search.on(parse_cluster("h100:12x4"))
    fewer.fastest_below(best)
    assert fewer.effort.bounded < 10 * fewer.effort.groups
