"""How long a step may take: what the user set, else what the steps so far give."""

import pytest

from jaxpar.distributed.step_limit import LEAST_S, UNKNOWN_S, StepLimit


def after(*seconds: float, fixed: float | None = None) -> StepLimit:
    limit = StepLimit(fixed)
    for each in seconds:
        limit.took(each)
    return limit


@pytest.mark.parametrize(
    ("seconds", "limit"),
    [
        ([0.1] * 5, UNKNOWN_S),
        ([0.1] * 6, LEAST_S),
        ([1.0] * 3 + [20.0, 21.0, 300.0], 105),
        ([300.0] * 3 + [0.1] * 3, LEAST_S),
        ([0.1] * 30 + [30.0] * 11, 150),
        ([500.0] * 6, 2500),
    ],
    ids=["pace not known", "short", "five times the median", "first steps do not count", "became longer", "long"],
)
def test_how_long_a_step_may_take(seconds: list[float], limit: float):
    assert after(*seconds).step_s == limit
    assert after(*seconds).pause_s == max(limit, UNKNOWN_S), "one that waits for another that saves has long"


def test_the_first_steps_from_a_checkpoint_have_long_again():
    limit = after(*[0.1] * 20)
    limit.start_over()
    given = []
    for _ in range(4):
        given.append(limit.step_s)
        limit.took(0.1)
    assert given == [UNKNOWN_S] * 3 + [LEAST_S]


@pytest.mark.parametrize("steps", [0, 3, 50])
def test_what_the_user_sets_holds_from_the_first_step_to_the_last(steps: int):
    limit = after(*[100.0] * steps, fixed=7)
    assert (limit.step_s, limit.pause_s) == (7, 7)
