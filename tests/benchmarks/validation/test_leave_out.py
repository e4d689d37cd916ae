"""Residuals of published runs: what is left out of them, and the intervals and tables that follow."""

import json
from dataclasses import asdict
from math import exp, expm1
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.validation.leave_out import by_source, left_out, pairs_of, spread_of
from benchmarks.validation.page import inputs
from jaxpar.planner.step_time.interval import PUBLISHED, RESIDUALS


def run(source: str, error: float, software: str = "", gpu: str = "h100", share: float = 0.4) -> Any:
    """A run that took exp(error) times what was predicted."""
    cluster = SimpleNamespace(gpu=SimpleNamespace(short=gpu, compute_capability=(9, 0)))
    return SimpleNamespace(
        source=source, error=error, software=software or source, cluster=cluster, share_of_peak=share
    )  # fmt: skip


RUNS = [
    *(run("a", error) for error in (0.1, 0.2, 0.3)),
    *(run("b", error) for error in (-0.1, -0.2)),
    *(run("c", error, "a") for error in (0.05, 0.5)),
]


def test_all_sources_of_a_software_are_left_out_together():
    found = left_out(by_source(RUNS))
    assert {name: set(one.others) for name, one in found.items()} == {"a": {"b"}, "b": {"a", "c"}, "c": {"b"}}
    assert found["b"].errors == pytest.approx([expm1(-0.1), expm1(-0.2)])
    assert found["a"].spread == spread_of({"b": RUNS[3:5]})


def test_an_interval_holds_four_of_five_runs_in_the_mean_over_sources():
    many = [run("a", step / 100) for step in range(1, 11)] + [run("b", -0.01) for _ in range(100)]
    spread = spread_of(by_source(many))
    assert spread.alone == pytest.approx(0.06), "all of b, and six of ten"


def test_runs_of_a_system_are_pairs_and_of_another_gpu_are_not():
    pairs = pairs_of([run("a", 0.1), run("a", 0.2), run("a", 0.9, gpu="a100-80")])
    assert [tuple(pair) for pair in pairs] == [(0.1, 0.2), (0.2, 0.1)]


def test_systems_whose_runs_share_their_error_are_known_by_one_of_them():
    shared = [run(name, sign * 0.3 + each) for name, sign in (("a", 1), ("b", -1)) for each in (-0.01, 0.01)]
    apart = [run(name, each) for name in ("a", "b") for each in (-0.3, 0.3, 0.31)]
    one, other = spread_of(by_source(shared)), spread_of(by_source(apart))
    assert one.shared > 0.98 and one.beside < 0.1 * one.alone
    assert other.shared < 0.6 and other.beside > 0.5 * other.alone


def test_the_naive_guess_is_the_share_of_the_peak_of_others():
    runs = [run("a", 0.0, share=0.5), run("b", 0.0, share=0.4), run("b", 0.0, share=0.2)]
    found = left_out(by_source(runs))
    assert found["a"].naive == pytest.approx([0.3 / 0.5 - 1])
    assert found["b"].naive_beside == pytest.approx([1.0, -0.5])


def test_the_planners_intervals_are_those_of_the_published_runs():
    written = json.loads(RESIDUALS.read_text())
    assert written["inputs"] == inputs(), "run python -m benchmarks.validation --write"
    assert written["spread"] == {name: asdict(PUBLISHED)[name] for name in ("alone", "beside", "shared")}
    assert exp(PUBLISHED.alone) == pytest.approx(PUBLISHED.interval(1.0)[1])
