"""The thread that runs the engine: jobs come in from an event loop, and pieces of text go back to it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxpar.generation.engine import Engine
from jaxpar.generation.requests import Request, Row
from jaxpar.generation.text import Stop
from jaxpar.serving.refusals import Refusal


class Piece(NamedTuple):
    """More of an answer."""

    answer: int
    text: str
    tokens: Sequence[tuple[int, float]] = ()
    """With their log-probabilities; those of a text that is still uncertain may come before it."""
    finish: str | None = None
    """`stop` or `length` in the last piece."""
    error: Refusal | None = None


@dataclass(eq=False)
class Job:
    """A prompt of a client."""

    request: Request
    stops: Sequence[Stop]
    """The text of each answer."""
    first: int
    """Index of its first answer among those of the client's request."""
    send: Callable[[Piece], None]
    """Called from the engine's thread."""
    sent: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.sent, self.request.on_token = [""] * self.request.answers, self._token

    def _token(self, answer: int, token: int) -> bool:
        stop = self.stops[answer]
        done = stop.add_token(token)
        text = stop.text if done else stop.certain.rstrip("\ufffd")
        likely = self.request.rows[answer].log_probabilities[-1]
        self.send(Piece(self.first + answer, self._new(answer, text), [(token, likely)]))
        return done

    def end(self, row: Row) -> None:
        """Send the last piece of an answer."""
        if not row.finite:
            self.fail(row.index, Refusal(500, "the model's log-probabilities are not all finite"))
            return
        text = self._new(row.index, self.stops[row.index].text)
        self.send(Piece(self.first + row.index, text, (), "stop" if row.ended else "length"))

    def fail(self, answer: int, error: Refusal) -> None:
        """Send an error in place of the rest of an answer."""
        self.send(Piece(self.first + answer, "", (), None, error))

    def _new(self, answer: int, text: str) -> str:
        """The text that was not sent yet."""
        before = self.sent[answer]
        if not text.startswith(before):
            return ""  # Bytes that are no whole character yet decode to another one.
        self.sent[answer] = text
        return text[len(before) :]


class Worker(threading.Thread):
    """Runs an engine until it is closed.

    Args:
        engine: is used by this thread alone from now on.
        most: answers that are drawn or wait, at most.
        on_failure: called in this thread if the engine fails.
    """

    def __init__(self, engine: Engine, most: int, on_failure: Callable[[], None] = lambda: None):
        super().__init__(name="engine", daemon=True)
        self.failure: BaseException | None = None
        self._engine, self._most, self._on_failure = engine, most, on_failure
        self._changed = threading.Condition()
        self._new: deque[Job] = deque()
        self._dropped: deque[Job] = deque()
        self._jobs: dict[Request, Job] = {}
        self._closed = False

    def submit(self, jobs: Sequence[Job]) -> None:
        """Draw answers to prompts. Raises `Refusal` where there are too many, or where the engine has ended."""
        with self._changed:
            if self._closed or self.failure is not None:
                raise Refusal(503, "the server is stopping; expected another one, or a later try")
            asked = sum(job.request.answers for job in jobs)
            waiting = sum(request.answers for request in self._jobs)
            if asked > self._most:
                raise Refusal(
                    400, f"n: {asked} answers in one request are more than the server takes ({self._most})", "n"
                )
            if waiting + asked > self._most:
                raise Refusal(429, f"the queue is full: {waiting} answers are drawn or wait; expected a later try")
            self._new.extend(jobs)
            self._jobs |= {job.request: job for job in jobs}
            self._changed.notify()

    def drop(self, jobs: Sequence[Job]) -> None:
        """Draw no more of them; their slots become free."""
        with self._changed:
            self._dropped.extend(job for job in jobs if job.request in self._jobs)
            self._changed.notify()

    def close(self) -> None:
        """End the thread; jobs that are not done have no more pieces."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self.join()

    def run(self) -> None:
        """See `threading.Thread`."""
        try:
            while self._wait():
                self._end(self._engine.step())
        except BaseException as error:
            with self._changed:
                self.failure, jobs = error, [*self._jobs.values()]
                self._jobs = {}
            for job in jobs:
                for answer in range(job.request.answers):
                    job.fail(answer, Refusal(500, f"the engine failed ({type(error).__name__})"))
            self._on_failure()

    def _wait(self) -> bool:
        """Wait for work, and pass it on to the engine; whether there is to be more."""
        with self._changed:
            while not (self._closed or self._new or self._dropped or self._engine.busy):
                self._changed.wait()
            while self._new:
                self._engine.add(self._new.popleft().request)
            while self._dropped:
                request = self._dropped.popleft().request
                self._engine.cancel(request)
                self._jobs.pop(request, None)
            return not self._closed

    def _end(self, rows: Sequence[Row]) -> None:
        """Send the last pieces of answers; jobs whose answers are all done are forgotten."""
        for row in rows:
            if row.request in self._jobs:
                self._jobs[row.request].end(row)
        with self._changed:
            for request in {row.request for row in rows}:
                if all(row.done for row in request.rows):
                    self._jobs.pop(request, None)
