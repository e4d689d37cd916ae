"""Standard errors are those of their definitions."""

import math
from statistics import stdev

import numpy as np
import pytest

from jaxpar.evaluation.outcome import exponential, mean, ratio, scaled


def test_the_error_of_a_mean_is_the_deviation_over_the_root_of_the_number():
    hits = [1.0, 0.0, 0.0, 1.0, 1.0]
    assert mean(hits) == pytest.approx((0.6, stdev(hits) / math.sqrt(5)))
    assert mean([1.0]) == (1.0, None)


def test_the_error_of_a_ratio_is_the_spread_of_the_ratios_of_repeated_samples():
    draw = np.random.default_rng(0)
    counts = draw.integers(5, 50, (4000, 60))
    sums = counts * (3.0 + draw.normal(0, 0.5, counts.shape))
    found = [ratio(own, many) for own, many in zip(sums.tolist(), counts.tolist(), strict=True)]
    spread = np.std([one.value for one in found])
    assert np.mean([one.error for one in found if one.error]) == pytest.approx(spread, rel=0.05)
    assert ratio([6.0], [2.0]) == (3.0, None)


def test_other_units_and_exponentials_take_their_errors_along():
    assert scaled(mean([1.0, 3.0]), -2.0) == (-4.0, 2.0)
    value, error = exponential(mean([1.0, 1.02]))
    assert value == pytest.approx(math.exp(1.01)) and error == pytest.approx(0.01 * value)
