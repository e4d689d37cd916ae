"""How long a step may take: what the user set, else what the steps so far give."""

from __future__ import annotations

import pytest

from jaxpar.distributed.step_limit import LEAST_S, UNKNOWN_S, StepLimit


def after(*seconds: float, fixed: float | None = None) -> StepLimit:
    limit = StepLimit(fixed)
    for each in seconds:
        limit.took(each)
    return limit


def test_while_the_pace_is_not_known_a_step_has_long():
    assert all(after(*[0.1] * steps).in_step_s == UNKNOWN_S for steps in range(6))


def test_short_steps_have_so_little_that_the_job_ends_within_a_minute():
    assert after(*[0.1] * 6).in_step_s == LEAST_S <= 50


def test_long_steps_have_five_times_their_median():
    assert after(*[1.0] * 3, *[20.0, 21.0, 300.0]).in_step_s == 105
    assert after(*[500.0] * 6).in_step_s == after(*[500.0] * 6).in_pause_s == 2500


def test_the_first_steps_do_not_determine_the_limit_of_the_others():
    assert after(300.0, 300.0, 300.0, *[0.1] * 3).in_step_s == LEAST_S


def test_steps_that_became_longer_get_more():
    assert after(*[0.1] * 30, *[30.0] * 11).in_step_s == 150


def test_the_first_steps_from_a_checkpoint_have_long_again():
    limit = after(*[0.1] * 20)
    limit.start_over()
    given = []
    for _ in range(4):
        given.append(limit.in_step_s)
        limit.took(0.1)
    assert given == [UNKNOWN_S] * 3 + [LEAST_S]


def test_one_that_waits_for_another_that_saves_has_long():
    assert after(*[0.1] * 20).in_pause_s == UNKNOWN_S


@pytest.mark.parametrize("steps", [0, 3, 50])
def test_what_the_user_sets_holds_from_the_first_step_to_the_last(steps: int):
    limit = after(*[100.0] * steps, fixed=7)
    assert (limit.in_step_s, limit.in_pause_s) == (7, 7)
