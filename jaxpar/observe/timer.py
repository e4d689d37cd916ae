"""Measures where a run spends its time: compilation, the first step, steady steps, and the host between steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Lap:
    """Steps between two calls of `StepTimer.lap`."""

    steps: int
    seconds: float
    """Wall time, pauses left out."""
    host_seconds: float
    """Part of it in which the host neither dispatched a step nor waited for the device."""

    @property
    def step_seconds(self) -> float:
        """Mean time of a step."""
        return self.seconds / self.steps if self.steps else 0.0


@dataclass(frozen=True)
class Turn:
    """One turn of the loop: from the end of the wait for one step to the end of the wait for the next."""

    seconds: float
    """Wall time, pauses left out; the rest are parts of it."""
    batch_seconds: float
    """The host waited for a batch, and put it on the devices."""
    dispatch_seconds: float
    """Seconds to dispatch a step to the devices."""
    device_seconds: float
    """Seconds of waiting for the devices."""

    @property
    def host_seconds(self) -> float:
        """The rest: logging, listeners, and other work of the host."""
        return max(0.0, self.seconds - self.batch_seconds - self.dispatch_seconds - self.device_seconds)


class StepTimer:
    """Divides a training loop's wall time by what it was spent on.

        with timer.compiling():
            step = jitted.lower(...).compile()
        for ...:
            with timer.fetching():   # fetches the next batch
                batch = next(batches)
            with timer.step():       # calls the compiled step, which returns before the device is done
                state, metrics = step(state, batch)
            if log:
                with timer.waiting():    # blocks on the device
                    loss = float(metrics["loss"])
                lap = timer.lap()
            with timer.paused():     # evaluation, saving
                ...

    Wait once right after the first step: this ends `first_step_seconds`, and steady time begins. Take a lap, and pause,
    right after a wait: otherwise remaining device work would be counted elsewhere. Time in neither block, and the time
    of `fetching`, is the host's own between steps. `turn` after each wait returns where the time of a single step went.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._first_began: float | None = None
        self._steady_seconds = 0.0
        self._steady_steps = 0
        self._host_seconds = 0.0
        self.compile_seconds = 0.0
        self.first_step_seconds: float | None = None
        self._begin_lap()
        self._begin_turn()

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Time in the block is compilation."""
        began = self._clock()
        yield
        spent = self._clock() - began
        self.compile_seconds += spent
        self._leave_out(spent)

    @contextmanager
    def fetching(self) -> Iterator[None]:
        """The block fetches the next batch, waiting for it if needed."""
        began = self._clock()
        yield
        self._turn_batch += self._clock() - began

    @contextmanager
    def step(self) -> Iterator[None]:
        """The block dispatches one step."""
        began = self._clock()
        if self._first_began is None:
            self._first_began = began
        yield
        spent = self._clock() - began
        self._lap_busy += spent
        self._turn_dispatch += spent
        self._lap_steps += 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The block waits for the device."""
        began = self._clock()
        yield
        now = self._clock()
        self._lap_busy += now - began
        self._turn_device += now - began
        if self.first_step_seconds is None and self._first_began is not None:
            self.first_step_seconds = now - self._first_began
            self._begin_lap()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time in the block belongs to no step: evaluation, saving."""
        began = self._clock()
        yield
        self._leave_out(self._clock() - began)

    def lap(self, steps: int | None = None) -> Lap:
        """Steps since the previous lap; the first step alone where none came after it.

        `steps` is the number that the device has finished, where more were dispatched.
        """
        if self._lap_steps == 0 and self._steady_steps == 0 and self.first_step_seconds is not None:
            return Lap(1, self.first_step_seconds, 0.0)
        seconds = self._clock() - self._lap_began - self._lap_left_out
        lap = Lap(self._lap_steps if steps is None else steps, seconds, max(0.0, seconds - self._lap_busy))
        self._steady_seconds += lap.seconds
        self._steady_steps += lap.steps
        self._host_seconds += lap.host_seconds
        self._begin_lap()
        return lap

    def turn(self) -> Turn:
        """Breakdown of the time since the previous call, or since the timer was made."""
        seconds = self._clock() - self._turn_began - self._turn_left_out
        turn = Turn(seconds, self._turn_batch, self._turn_dispatch, self._turn_device)
        self._begin_turn()
        return turn

    @property
    def steady_step_seconds(self) -> float | None:
        """Mean time of the steps after the first, over the laps taken; None before there is one."""
        return self._steady_seconds / self._steady_steps if self._steady_steps else None

    @property
    def host_step_seconds(self) -> float | None:
        """Mean time of the host's own work between two steady steps; None before there is one."""
        return self._host_seconds / self._steady_steps if self._steady_steps else None

    @property
    def train_seconds(self) -> float:
        """Time in steps, over the laps taken: the first and the steady ones."""
        return (self.first_step_seconds or 0.0) + self._steady_seconds

    def _begin_lap(self) -> None:
        self._lap_began = self._clock()
        self._lap_steps = 0
        self._lap_busy = 0.0
        self._lap_left_out = 0.0

    def _begin_turn(self) -> None:
        self._turn_began = self._clock()
        self._turn_batch = self._turn_dispatch = self._turn_device = self._turn_left_out = 0.0

    def _leave_out(self, seconds: float) -> None:
        self._lap_left_out += seconds
        self._turn_left_out += seconds
