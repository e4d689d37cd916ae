"""The versioned buffer between sampler and trainer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from jaxpar.mesh.parameters import Weights
from jaxpar.rl.prompts import Prompt
from jaxpar.rl.sampling.rollouts import Rollouts

type Draw = Callable[[int, int, Weights], Rollouts]
"""Draws and rewards answers, from the number of a batch of prompts, a version and weights of that version."""


type DrawOthers = Callable[[Sequence[Prompt], Weights], Rollouts]
"""Draws and rewards answers to prompts that are no batch."""


class RolloutBuffer:
    """Batches of answers that are drawn up to some versions ahead of the steps that learn from them.

    Args:
        draw: draws a batch.
        transfer: puts the weights of the trainer where `draw` takes them.
        lag: the greatest number of versions by which the weights that drew a batch may be older than those that learn
            from it; so many batches are drawn ahead.
        beside: whether a thread draws while the caller goes on; else a batch is drawn when it is asked for, and what is
            drawn depends on the calls alone.
        newest: whether a batch that begins late takes the newest weights, where a thread draws.
    """

    def __init__(
        self,
        draw: Draw,
        transfer: Callable[[Weights], Weights],
        lag: int,
        *,
        beside: bool = False,
        newest: bool = False,
    ):
        self._draw, self._transfer, self._lag, self._takes_newest = draw, transfer, lag, newest
        self._thread = _thread() if beside else None
        self._waiting: deque[Future[Rollouts]] = deque()
        self._newest: tuple[int, Weights] = 0, {}
        self.following = 0
        """The number of the next batch of prompts."""
        self.dropped = 0
        """Batches that were too old to be learned from."""

    def refresh(self, version: int, weights: Weights) -> None:
        """Draw with weights of another version from now on, as many batches as the lag allows."""
        self._newest = version, (self._transfer(weights) if self._thread is not None else weights)
        while len(self._waiting) <= self._lag:
            self._ask()

    def take(self, version: int) -> Rollouts:
        """The next batch whose weights are within the lag of `version`, after `refresh` with that; waits for it."""
        while True:
            batch = self._waiting.popleft().result()
            if version - batch.version <= self._lag:
                return batch
            self.dropped += 1
            if not self._waiting:
                self._ask()

    def beside(self, draw: DrawOthers, prompts: Sequence[Prompt], weights: Weights) -> Rollouts:
        """Answers to other prompts with other weights, between two batches."""
        work = lambda: draw(prompts, self._transfer(weights))
        return work() if self._thread is None else self._thread.submit(work).result()

    def settled(self) -> Sequence[Rollouts]:
        """The batches that wait to be learned from. Those that have begun are waited for; under `newest` others are not
        drawn, until `refresh`."""
        self.pause()
        return [one.result() for one in self._waiting]

    def pause(self) -> None:
        """Begin no further batch until `refresh`, where those that are asked for need no weights of before."""
        if self._takes_newest:
            self._cancel()

    def restore(self, following: int, dropped: int, waiting: Sequence[Rollouts]) -> None:
        """Go on from what a checkpoint has."""
        self.settled()
        self.following, self.dropped = following, dropped
        self._waiting = deque(map(_finished, waiting))

    def close(self) -> None:
        """End the thread, after the batch that it draws; `refresh` begins another, and asks again for those behind."""
        if self._thread is not None:
            self._cancel()
            self._thread.shutdown(cancel_futures=True)
            self._thread = _thread()

    def _cancel(self) -> None:
        """Take back batches that have not begun, the last one first: one that begins meanwhile has those before it."""
        while self._waiting and self._waiting[-1].cancel():
            self._waiting.pop()
            self.following -= 1

    def _ask(self) -> None:
        index, asked = self.following, self._newest
        self.following += 1
        if self._thread is None:
            version, weights = asked
            self._waiting.append(_finished(self._draw(index, version, self._transfer(weights))))
            return
        of_asking = lambda: self._draw(index, *asked)
        of_beginning = lambda: self._draw(index, *self._newest)
        self._waiting.append(self._thread.submit(of_beginning if self._takes_newest else of_asking))


def _thread() -> ThreadPoolExecutor:
    """A thread that begins with its first work."""
    return ThreadPoolExecutor(1, "sampler")


def _finished(batch: Rollouts) -> Future[Rollouts]:
    done: Future[Rollouts] = Future()
    done.set_result(batch)
    return done
