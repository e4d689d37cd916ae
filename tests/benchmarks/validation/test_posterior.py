"""What measured runs show of software that is not known: which kind it is like, and what they share beside that."""

from __future__ import annotations

from math import exp, log

import pytest

from benchmarks.validation.posterior import posterior
from jaxpar.planner.step_time.interval import KNOWN, Spread

PRIOR = Spread(between=0.07, within=0.05, quantile=1.2)


def test_a_run_shows_which_kind_of_software_it_is_like():
    """One that takes what the second kind is predicted to take, and half as long again as the first."""
    found = posterior([{"first": log(1.5), "second": 0.0}], PRIOR)
    assert found.weights["second"] > 0.8 and sum(found.weights.values()) == pytest.approx(1)
    each = {"first": 1.0, "second": 3.0}
    assert 2.5 < found.seconds(each) < 3.0 + 1e-9


def test_more_runs_decide_it():
    runs = [{"first": 0.15, "second": 0.0}]
    one, many = (posterior(runs * number, PRIOR).weights["second"] for number in (1, 8))
    assert 0.5 < one < many


def test_runs_that_no_kind_explains_share_the_rest():
    """All kinds are too fast by the same factor."""
    found = posterior([{"first": 0.4, "second": 0.4}] * 3, PRIOR)
    assert found.weights["first"] == pytest.approx(0.5)
    assert 0.3 < log(found.seconds({"first": 1.0, "second": 1.0})) < 0.4
    assert found.shared.factor == pytest.approx(found.seconds({"first": 1.0, "second": 1.0}))


def test_kinds_that_differ_widen_the_interval():
    found = posterior([{"first": 0.01, "second": -0.01}], PRIOR)
    width = lambda each: found.spread(each).interval(1.0)[1]
    assert width({"first": 1.0, "second": 2.0}) > 1.2 * width({"first": 1.0, "second": 1.0})


def test_software_that_is_known_is_one_kind():
    found = posterior([{"own": 0.1}, {"own": 0.2}], KNOWN)
    after = KNOWN.measured([0.1, 0.2])
    assert found.weights == {"own": 1.0} and found.shared == after
    assert found.seconds({"own": 2.0}) == pytest.approx(2.0 * exp(after.shift))


def test_a_run_far_off_says_more_of_its_system_than_one_nearby():
    """Most systems are near their prediction, and a few far from it."""
    near, far = (PRIOR.measured([error]).shift / error for error in (0.02, 0.4))
    assert far > near + 0.1
