"""Jobs that share a cluster: what a simulation keeps, what the policies give, and files of jobs."""

import json
import random
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from jaxpar.config.reading.loading import config_to_yaml
from jaxpar.plan import main
from jaxpar.planner.jobs.job import Curve, Job, Point, curve_of
from jaxpar.planner.jobs.policies import (
    POLICIES,
    Outcome,
    by_curves,
    first_in_first_out,
    outcomes,
    shortest_first,
    simulate,
)  # fmt: skip
from jaxpar.planner.jobs.share import print_outcomes
from jaxpar.planner.machine import named_cluster
from tests.planner.spaces import model_of
from tests.sentences import refused_by_command

HOUR = 3600.0
USUAL = {"config": "model.yaml", "tokens": 1e9}


def curve(most: int = 8, power: float = 1.0, pause: float = 0.0) -> Curve:
    """A token per second on one GPU, growing by `power` of the number."""
    return Curve({gpus: Point(gpus**power, pause) for gpus in (1, 2, 4, 8, 16) if gpus <= most})


def random_jobs(seed: int, number: int = 6) -> list[Job]:
    draw = random.Random(seed)
    jobs = []
    for index in range(number):
        arrives, tokens = draw.uniform(0, 4 * HOUR), draw.uniform(1, 20) * HOUR
        deadline = draw.choice([None, arrives + draw.uniform(0.5, 3) * tokens / 4])
        own = curve(power=draw.uniform(0.6, 1), pause=draw.uniform(0, 600))
        jobs.append(Job(f"job{index}", tokens, own, arrives, deadline, draw.choice([1.0, 3.0]), draw.choice([2, 4, 8])))
    return jobs


def check(outcome: Outcome, gpus: int) -> None:
    """The spans alone account for every token, and never use more than the cluster."""
    for job in outcome.jobs:
        spans = sorted((span for span in outcome.spans if span.job == job.name), key=lambda span: span.start)
        assert spans[0].start >= job.arrives and spans[-1].end == outcome.finished[job.name]
        assert all(first.end <= second.start for first, second in pairwise(spans))
        trained = sum(
            job.curve.speed(span.gpus) * max(0.0, span.end - span.start - job.curve.points[span.gpus].pause)
            for span in spans
        )
        assert trained == pytest.approx(job.tokens, rel=1e-9)
    for moment in (span.start for span in outcome.spans):
        assert sum(span.gpus for span in outcome.spans if span.start <= moment < span.end) <= gpus


def test_every_token_is_trained_once_on_gpus_that_the_cluster_has_and_the_plan_is_the_best_of_the_policies():
    for seed in range(8):
        found = outcomes(random_jobs(seed), 8)
        best, *others = found.values()
        assert all(best.score <= one.score for one in others) and found.keys() == POLICIES.keys()
        for one in found.values():
            check(one, 8)


def test_first_in_first_out_by_hand():
    """8 GPUs: a has 4, b wants 8 and waits for it, c would fit beside a and still waits behind b."""
    jobs = [Job("a", 400, curve(), 0, asks=4), Job("b", 800, curve(), 10, asks=8), Job("c", 40, curve(), 20, asks=4)]
    assert simulate(jobs, 8, first_in_first_out).finished == {"a": 100, "b": 200, "c": 210}


def test_jobs_that_scale_alike_are_run_shortest_first():
    """With linear curves the mean time is least when all GPUs go to the job with least work: 1 + 3 + 7 seconds."""
    jobs = [Job("long", 32, curve()), Job("short", 8, curve()), Job("middle", 16, curve())]
    found = simulate(jobs, 8, shortest_first)
    assert found.finished == {"short": 1, "middle": 3, "long": 7}


def test_the_earliest_deadline_gets_the_fewest_gpus_that_meet_it():
    jobs = [Job("due", 400, curve(), deadline=105), Job("short", 80, curve())]
    kept = simulate(jobs, 8, by_curves)
    assert not kept.late and kept.spans[0].gpus == 4
    assert kept.finished["short"] == 20
    tight = [Job("due", 800, curve(), deadline=100), Job("short", 80, curve())]
    assert [job.name for job in simulate(tight, 8, shortest_first).late] == ["due"]
    assert next(iter(outcomes(tight, 8))) in ("by curves", "first in, first out")


def test_a_deadline_that_cannot_be_met_takes_nothing_from_the_others():
    jobs = [Job("hopeless", 8000, curve(), deadline=10), Job("due", 80, curve(), deadline=11)]
    assert [job.name for job in simulate(jobs, 8, by_curves).late] == ["hopeless"]


def test_priorities_weigh_in():
    jobs = [Job("usual", 80, curve()), Job("urgent", 160, curve(), priority=4)]
    assert simulate(jobs, 8, shortest_first).finished == {"urgent": 20, "usual": 30}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a small model."""
    path = tmp_path_factory.mktemp("jobs") / "model.yaml"
    path.write_text(config_to_yaml(model_of()))
    return path


def test_the_command_shares_a_cluster(model: Path, capsys: pytest.CaptureFixture[str]):
    path, second = model.parent / "jobs.yaml", {"tokens": 2e9, "arrives": 1.0, "gpus": 1, "set": ["run.seed=1"]}
    jobs = {"first": USUAL | {"tokens": 1e10, "deadline": 100}, "second": USUAL | second}
    path.write_text(yaml.safe_dump({"jobs": jobs}))
    assert main(["cluster", "--cluster", "h100:1x2", "--jobs", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["policies"]) == set(POLICIES) and found["policy"] == next(iter(found["policies"]))
    speeds = found["jobs"]["first"]["curve"]
    assert speeds["1"] < speeds["2"] < 2.1 * speeds["1"]
    assert {span["job"] for span in found["plan"]} == {"first", "second"} and not found["jobs"]["first"]["late"]
    assert main(["cluster", "--cluster", "h100:1x2", "--jobs", str(path)]) == 0
    printed = capsys.readouterr().out
    assert found["policy"] in printed and "Plan: " in printed and "80%: steps of four of five systems" in printed


@pytest.mark.parametrize(
    ("jobs", "parts"),
    [
        ({"jobs": {"a": {"config": "m", "token": 1}}}, ("jobs.a", "token", "did you mean tokens?")),
        ({"jobs": {"a": {"config": "model.yaml"}}}, ("wrong.yaml:2: jobs.a", "tokens")),
        ({"jobs": {"a": USUAL | {"tokens": -1}}}, ("wrong.yaml:2: jobs.a.tokens", "at least 1")),
        ({"jobs": {"a": USUAL | {"priority": 0}}}, ("jobs.a.priority",)),
        (
            {"jobs": {"a": USUAL, "b": USUAL | {"arrives": 5, "deadline": 4}}},
            (f"wrong.yaml:{len(USUAL) + 3}: jobs.b.deadline", "5", "4"),
        ),
        ({"jobs": {}}, ("jobs", "mapping")),
        ({"job": {}}, ("wrong.yaml:1: job", "did you mean jobs?")),
        ({"jobs": {"a": USUAL | {"gpus": 16}}}, ("jobs.a.gpus", "2", "16")),
        ({"jobs": {"a": USUAL | {"config": "modl.yaml"}}}, ("jobs.a", "modl.yaml")),
        ({"jobs": {"a": USUAL | {"set": ["model.embd=3"]}}}, ("embd", "did you mean")),
    ],
)
def test_a_mistake_is_one_sentence(
    model: Path, jobs: object, parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    path = model.parent / "wrong.yaml"
    path.write_text(yaml.safe_dump(jobs))
    code = main(["cluster", "--cluster", "h100:1x2", "--jobs", str(path)])
    out, err = capsys.readouterr()
    refused_by_command(code, out, err, *parts)


def test_a_job_is_not_restarted_for_less_than_the_pause():
    """A GPU more would save 40 s and cost 100."""
    jobs = [Job("a", 80, curve(1, pause=100)), Job("b", 400, Curve({4: Point(4, 100), 5: Point(5, 100)}))]
    found = simulate(jobs, 5, shortest_first)
    assert {span.gpus for span in found.spans if span.job == "b"} == {4}


def test_a_curve_leaves_out_numbers_that_are_no_faster():
    found = curve_of({8: Point(5, 0), 1: Point(1, 0), 2: Point(3, 0), 4: Point(2.9, 0)})
    assert list(found.points) == [1, 2, 8]
    assert (found.least, found.within(7), found.within(0), found.speed(0)) == (1, 2, 0, 0)
    assert found.efficient == 2  # 1.5 a GPU; 8 have 0.6


def test_a_missed_deadline_is_reported():
    screen = Console(width=160, record=True, file=StringIO())
    print_outcomes(outcomes([Job("a", 800 * HOUR, curve(), deadline=90 * HOUR)], 8), named_cluster("h100:1x8"), screen)
    assert "a finishes 10.0 hours after its deadline, and after it under every policy" in screen.export_text()
