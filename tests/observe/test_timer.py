"""The step timer, on a clock that the test turns."""

import pytest

from jaxpar.observe.timer import StepTimer


class Clock:
    """Seconds that pass only when a test adds them."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


def steps(timer: StepTimer, clock: Clock, count: int, host: float, dispatch: float, device: float) -> None:
    for _ in range(count):
        clock.spend(host)
        with timer.step():
            clock.spend(dispatch)
    with timer.waiting():
        clock.spend(device)


def test_each_second_is_counted_once_and_in_its_place() -> None:
    clock = Clock()
    timer = StepTimer(clock)
    with timer.compiling():
        clock.spend(20)
    steps(timer, clock, 1, host=5, dispatch=1, device=2)  # time before the first step is no step's
    assert (timer.compile_seconds, timer.first_step_seconds) == (20, 3)
    first = timer.lap()
    assert (first.steps, first.seconds) == (1, 3)

    steps(timer, clock, 9, host=0.5, dispatch=0.25, device=2.25)
    lap = timer.lap()
    assert (lap.steps, lap.seconds, lap.host_seconds, lap.step_seconds) == (9, 9, 4.5, 1)
    with timer.paused():
        clock.spend(1000)
    steps(timer, clock, 10, host=0.1, dispatch=0.1, device=28)
    lap = timer.lap()
    assert lap.seconds == pytest.approx(30) and lap.host_seconds == pytest.approx(1)

    assert timer.steady_step_seconds == pytest.approx(39 / 19)
    assert timer.host_step_seconds == pytest.approx(5.5 / 19) and timer.train_seconds == pytest.approx(3 + 39)


def test_the_first_step_stays_out_of_the_first_lap_when_it_was_not_logged_alone() -> None:
    clock = Clock()
    timer = StepTimer(clock)
    steps(timer, clock, 1, host=0, dispatch=50, device=50)
    steps(timer, clock, 9, host=0, dispatch=1, device=0)
    lap = timer.lap()
    assert (lap.steps, lap.seconds) == (9, 9)
    assert timer.train_seconds == 109
    with timer.compiling():
        clock.spend(7)
    steps(timer, clock, 2, host=0, dispatch=1, device=0)
    assert timer.lap().seconds == 2 and timer.compile_seconds == 7, "compiling is no step's time"


def test_before_anything_ran_nothing_is_claimed() -> None:
    timer = StepTimer(Clock())
    assert timer.first_step_seconds is None and timer.steady_step_seconds is None and timer.host_step_seconds is None
    assert timer.train_seconds == 0


def test_a_turn_states_where_the_time_of_one_step_went() -> None:
    clock = Clock()
    timer = StepTimer(clock)
    timer.turn()
    with timer.fetching():
        clock.spend(3)
    steps(timer, clock, 1, host=0.5, dispatch=1, device=2)
    with timer.paused():
        clock.spend(1000)
    turn = timer.turn()
    assert (turn.seconds, turn.batch_seconds, turn.dispatch_seconds, turn.device_seconds) == (6.5, 3, 1, 2)
    assert turn.host_seconds == 0.5
    steps(timer, clock, 1, host=0, dispatch=1, device=0)
    assert timer.turn().seconds == 1
