"""Slow steps, waiting devices and stragglers, from made-up times."""

import pytest

from jaxpar.observe.pace import Losses, Pace, SlowSteps
from jaxpar.observe.stragglers import ProcessPace, find_straggler
from jaxpar.observe.timer import Turn


def turn(seconds: float, *, batch: float = 0.0, dispatch: float = 0.0, device: float | None = None) -> Turn:
    return Turn(seconds, batch, dispatch, seconds - batch - dispatch if device is None else device)


def after(turns: list[Turn], last: Turn):
    slow = SlowSteps(3.0)
    assert [slow.add(each) for each in turns] == [None] * len(turns)
    return slow.add(last)


@pytest.mark.parametrize(
    ("parts", "where"),
    [
        ({"batch": 5.0}, "5.00 s of it waiting for a batch"),
        ({"dispatch": 5.0}, "5.00 s of it handing steps to the devices"),
        ({}, "6.00 s of it waiting for the devices"),
        ({"device": 0.5}, "5.50 s of it in the host between steps"),
    ],
)
def test_a_slow_step_states_where_its_time_went(parts: dict[str, float], where: str):
    slow = after([turn(0.5)] * 10, turn(6.0, **parts))
    assert slow is not None
    assert (slow.seconds, slow.median, slow.where) == (6.0, 0.5, where)


def test_what_is_usual_is_not_what_made_a_step_slow():
    slow = after([turn(2.0, batch=1.9)] * 10, turn(8.0, batch=2.0))
    assert slow is not None and slow.where == "6.00 s of it waiting for the devices"


@pytest.mark.parametrize(
    ("usual", "last"), [(0.01, 1.0), (2.0, 5.9)], ids=["less than a second longer", "less than three times as long"]
)
def test_a_step_that_is_a_little_slow_is_not_worth_a_word(usual: float, last: float):
    assert after([turn(usual)] * 10, turn(last)) is None


def test_a_pace_that_stays_is_slow_no_longer():
    slow = SlowSteps(3.0)
    found = [slow.add(turn(seconds)) is not None for seconds in [1.0] * 20 + [10.0] * 40]
    assert found[20] and not any(found[45:])


def test_nothing_is_judged_by_a_few_steps_or_without_a_limit():
    assert after([turn(1.0)] * 9, turn(100.0)) is None
    slow = SlowSteps(None)
    assert all(slow.add(turn(seconds)) is None for seconds in [1.0] * 20 + [100.0])


def test_a_pace_that_became_slower_is_reported_for_every_stretch_with_what_it_goes_to():
    pace = Pace(1.5)
    found = [pace.add(turn(1.2)) for _ in range(20)]
    found += [pace.add(turn(1.0, device=0.9)) for _ in range(20)]
    assert not any(found), "faster is better"
    found = [pace.add(turn(1.6, device=0.9, batch=0.6)) for _ in range(40)]
    slow = [each for each in found if each is not None]
    assert [number for number, each in enumerate(found, 1) if each] == [20, 40]
    assert (slow[0].seconds, slow[0].best, slow[0].where) == (1.6, 1.0, "600 ms of it waiting for a batch")


@pytest.mark.parametrize(("best", "now"), [(1.0, 1.4), (0.02, 0.06)], ids=["not half as long again", "a second in all"])
def test_a_pace_that_is_a_little_slower_is_not_worth_a_word(best: float, now: float):
    pace = Pace(1.5)
    assert not any([pace.add(turn(best)) for _ in range(20)] + [pace.add(turn(now)) for _ in range(20)])


def test_a_few_slow_steps_do_not_make_a_slow_pace():
    pace = Pace(1.5)
    assert not any(pace.add(turn(9.0 if number % 3 == 0 else 1.0)) for number in range(60))


def test_only_what_the_devices_had_to_wait_for_is_lost():
    losses = Losses()
    losses.add(turn(1.0, batch=0.6, device=0.3))  # the batch came while the devices were at work
    assert (losses.host, losses.batch) == (0.0, 0.0)
    losses.add(turn(2.0, batch=1.2, dispatch=0.1, device=0.05))
    assert losses.batch == 1.2 and losses.host == pytest.approx(1.2 + 0.65) and losses.batch_share == 1.2 / 3.0
    total = losses + losses
    assert (total.steps, total.seconds, total.batch, total.longest) == (4, 6.0, 2.4, 1.2)
    assert total.batch_share == losses.batch_share


def paces(*host: float, batch: float = 0.0) -> list[ProcessPace]:
    return [ProcessPace(i, f"node-{i}", 10, Losses(10, 20.0, lost, batch)) for i, lost in enumerate(host)]


def test_the_process_that_loses_more_than_the_others_is_the_straggler():
    straggler = find_straggler(paces(0.2, 0.1, 9.1, 0.0), 0.1)
    assert straggler is not None
    assert (straggler.pace.process, straggler.seconds, straggler.share) == (2, 9.0, 0.45)


@pytest.mark.parametrize(
    ("lost", "steps", "why"),
    [
        ((9.0, 9.1, 9.2), 10, "all wait alike, for data that comes slowly for instance"),
        ((0.0, 0.0, 1.9), 10, "less than a tenth of the time"),
        ((5.0,), 10, "alone"),
        ((0.0, 0.9), 1, "a second is the least that is reported"),
    ],
)
def test_without_one_that_stands_out_there_is_no_straggler(lost: tuple[float, ...], steps: int, why: str):
    paces = [ProcessPace(i, "a", steps, Losses(steps, 2.0 * steps, each, 0.0)) for i, each in enumerate(lost)]
    assert find_straggler(paces, 0.1) is None, why
