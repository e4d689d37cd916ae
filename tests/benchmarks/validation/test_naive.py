"""The naive guess beside predictions: one share of the peak, before and after a run was measured."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from benchmarks.validation.judged import Judged
from benchmarks.validation.naive import naive, naive_beside_a_run, share_of_peak
from benchmarks.validation.predict import judge
from benchmarks.validation.published import PUBLISHED, Run, read_runs
from benchmarks.validation.report import report


@pytest.fixture(scope="module")
def first() -> Run:
    return next(run for run in read_runs(PUBLISHED) if run.source == "kwai_7b" and run.tokens_per_s_per_gpu)


def at(run: Run, speed: float, source: str = "a", software: str = "x") -> Run:
    return replace(run, source=source, row=f"{source} {speed}", software=software, tokens_per_s_per_gpu=speed)


def test_it_is_the_share_of_other_sources(first: Run):
    """Each source counts once, and the guess for a source leaves its own runs out."""
    runs = [at(first, 100.0), at(first, 400.0, "b"), at(first, 200.0, "c"), at(first, 200.0, "c")]
    found = naive(runs)
    assert found["a"] == [pytest.approx(300 / 100 - 1)]
    assert found["b"] == [pytest.approx(150 / 400 - 1)]
    assert naive(runs[:1]) == {}, "no other source"
    assert naive(runs[:1], runs[1:])["a"] == found["a"]


def test_after_a_run_it_is_the_share_of_that_one(first: Run):
    """Of the same software alone: two runs of one kind, of which one is half as fast, and one of another kind."""
    runs = [at(first, 100.0), at(first, 200.0), at(first, 900.0, software="y")]
    assert sorted(naive_beside_a_run(runs)["a"]) == [pytest.approx(-0.5), pytest.approx(1.0)]


def test_it_counts_the_arithmetic_of_another_model(first: Run):
    """Runs of two models that reach the same share of the peak are guessed from each other without an error."""
    model = replace(first.model, layers=2 * first.model.layers)
    other = replace(first, model=model)
    share = share_of_peak(at(first, 100.0))
    assert share is not None
    speed = 100.0 * share / (share_of_peak(at(other, 100.0)) or 0.0)
    assert speed < 100.0
    errors = naive_beside_a_run([at(first, 100.0), at(other, speed)])["a"]
    assert errors == [pytest.approx(0, abs=1e-9)] * 2


def test_a_report_has_it_beside_the_errors_of_predictions():
    """Of one source, whose layouts differ; the guess is from all other sources of the repository."""
    runs = [run for run in read_runs(PUBLISHED) if run.source == "torchtitan_h100_2412" and run.tokens_per_s_per_gpu]
    judged: list[Judged] = [judge(run) for run in runs]
    found = report(judged, known=read_runs(PUBLISHED))
    own = found.sources["torchtitan_h100_2412"]
    assert own.naive_median_error == median(map(abs, naive(runs, read_runs(PUBLISHED))["torchtitan_h100_2412"]))
    assert own.anchored_naive_median_error is not None and own.anchored_median_error is not None
    assert own.anchored_median_error < 0.3 * own.anchored_naive_median_error
    head, line, *_ = found.table()
    assert head.split().count("naive") == 2
    assert f"{100 * own.anchored_naive_median_error:.1f}%" in line
    assert report(judged).sources["torchtitan_h100_2412"].naive_median_error is None
