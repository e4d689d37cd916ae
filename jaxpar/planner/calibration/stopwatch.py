"""Seconds of one operation on a device, from loops that run there.

One compiled program runs an operation many times, each time after the one before, and another runs it once. The
difference of their times has no launch of a program in it, nor the wait for its result. Where the operation is so short
that launches of kernels inside the loop count, the result is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpar.pages.units import seconds as in_words

REPEATS = 5
"""Times that each loop is timed; the least counts."""
LONGEST = 2000
"""Largest number of operations in a loop."""
GROWTH = 8
"""Factor by which a loop grows that took no more time than one operation."""
LAUNCHES = 10
"""An operation that takes less time than this many launches of the smallest kernel is refused: the loop's own kernels
would be a part of what is measured."""
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"


class Unmeasurable(Exception):
    """The reason why an operation has no time, in a clause."""


@dataclass
class Stopwatch:
    """Times operations, and records what it refuses."""

    loop_s: float
    """Seconds that the longer loop should take: many times the clock's resolution."""
    launch_s: float = 0.0
    """Seconds of the smallest kernel in a loop."""
    refused: list[str] = field(default_factory=list)
    """Measurements that were not kept, and why."""

    def measure_launch(self) -> None:
        """Measure the smallest kernel."""
        self.launch_s = self.loop(lambda x: x * 0.5 + 1.0, jnp.ones(8))

    def record_seconds(self, name: str, measure: Callable[[], float]) -> float | None:
        """The seconds that `measure` returns; None, with a line in `refused`, where they cannot be had or are bound
        by launches."""
        try:
            seconds = measure()
        except (Unmeasurable, jax.errors.JaxRuntimeError) as why:
            if not isinstance(why, Unmeasurable) and OUT_OF_MEMORY not in str(why):
                raise
            text = why if isinstance(why, Unmeasurable) else "it does not fit the device's memory"
            self.refused.append(f"{name}: {text}")
            return None
        if seconds < LAUNCHES * self.launch_s:
            self.refused.append(
                f"{name}: {in_words(seconds)} are bound by launches: less than {LAUNCHES} times the "
                f"{in_words(self.launch_s)} of the smallest kernel"
            )
            return None
        return seconds

    def loop(
        self, step: Callable[..., Any], carry: Any, *operands: Any, agree: Callable[[float], float] = float,
        within: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
    ) -> float:  # fmt: skip
        """Seconds of `step(carry, *operands)`, which returns another carry.

        Args:
            step: the operation; nothing of it is left out, even where it returns the same each time.
            carry: arrays that the next operation waits for.
            operands: arrays that stay the same.
            agree: makes one number of those of all processes, where all must run the same loops.
            within: wraps the loop, as in `shard_map`.

        Raises:
            Unmeasurable: a longer loop took no longer.
        """
        of_length = lambda times: partial(jax.jit(within(partial(repeated, step, times))), carry, *operands)
        return self._each(lambda times: agree(_timed(of_length(times))))

    def calls(self, function: Callable[..., Any], *arguments: Any) -> float:
        """Seconds of a compiled function among many calls, for what no loop on a device can hold. Raises
        `Unmeasurable`."""
        return self._each(lambda times: _timed(lambda: [function(*arguments) for _ in range(times)][-1]))

    def _each(self, timed: Callable[[int], float]) -> float:
        """Seconds of an operation, from those of so many: of one, and of so many that the others take `loop_s`."""
        one, times, rest = timed(1), 1, 0.0
        guess = ceil(1.2 * self.loop_s / one)
        while rest < self.loop_s and times < LONGEST:
            times = min(LONGEST, max(2 * times, guess + 1))
            rest = timed(times) - one
            guess = times * GROWTH if rest <= 0 else ceil(1.2 * times * self.loop_s / rest)
        if rest <= 0:
            raise Unmeasurable("a longer loop took no more time")
        return rest / (times - 1)


def repeated(step: Callable[..., Any], times: int, carry: Any, *operands: Any) -> Any:
    """`step` so many times, each after the one before: a step with results that do not change is not moved out of the
    loop."""

    def body(_: Any, state: Any) -> Any:
        carry, held = lax.platform_dependent(*state, cpu=_changed, default=_after)
        return step(carry, *held), held

    return lax.fori_loop(0, times, body, (carry, operands))[0]


def _after(carry: Any, held: Any) -> Any:
    """The same arrays, the held ones not before the carry is there."""
    return lax.optimization_barrier((carry, held))


def _changed(carry: Any, held: Any) -> Any:
    """The same, of which each held array has a first number that is the carry's: XLA:CPU removes barriers too early."""
    first = jax.tree.leaves(carry)[0].ravel()[0]
    place = lambda x: lax.dynamic_update_slice(x, first.astype(x.dtype).reshape((1,) * x.ndim), (0,) * x.ndim)
    return carry, jax.tree.map(place, held)


def _timed(run: Callable[[], Any]) -> float:
    """Seconds until the result is there: the least of several, since what disturbs a measurement adds to it."""
    jax.block_until_ready(run())
    spans = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(run())
        spans.append(time.perf_counter() - start)
    return min(spans)
