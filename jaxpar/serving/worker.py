"""The thread that runs the engine: jobs come in from an event loop, and pieces of text go back to it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxpar.generation.engine import Engine
from jaxpar.generation.requests import Request, Row
from jaxpar.generation.text import Stop
from jaxpar.serving.refusals import Refusal

ENDING = "the server is stopping; expected another one, or a later try"


class Piece(NamedTuple):
    """More of an answer."""

    answer: int
    text: str
    tokens: Sequence[tuple[int, float]] = ()
    """The tokens with their log-probabilities; those of a text that is still uncertain may come before it."""
    finish: str | None = None
    """`stop` or `length` in the last piece."""
    error: Refusal | None = None
    ending: tuple[int, float] | None = None
    """In the last piece, the stop token that ended the answer, if one did, with its log-probability."""


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
    version: str | None = None
    """The version of the weights that draw its answers."""

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
        finish = "stop" if row.ended else "length"
        self.send(Piece(self.first + row.index, text, (), finish, ending=row.ending))

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
        self.version: str | None = None
        """The version of the weights; set between two steps."""
        self._engine, self._most, self._on_failure = engine, most, on_failure
        self._changed = threading.Condition()
        self._new: deque[Job] = deque()
        self._dropped: deque[Job] = deque()
        self._jobs: dict[Request, Job] = {}
        self._calls: deque[tuple[Callable[[], Any], bool, Future[Any]]] = deque()
        self._closed = self._paused = False

    def submit(self, jobs: Sequence[Job]) -> None:
        """Draw answers to prompts. Raises `Refusal` where there are too many, or where the engine has ended."""
        with self._changed:
            if self._closed or self.failure is not None:
                raise Refusal(503, ENDING)
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

    def call[T](self, function: Callable[[], T], *, idle: bool = False) -> Future[T]:
        """Call a function in this thread between two steps, or once no answer is drawn."""
        result: Future[T] = Future()
        with self._changed:
            if self._closed or self.failure is not None:
                raise Refusal(503, ENDING)
            self._calls.append((function, idle, result))
            self._changed.notify()
        return result

    def pause(self) -> Future[None]:
        """Draw the answers that have begun to their end, which the future waits for; others wait until `resume`."""
        with self._changed:
            self._paused = True
        return self.call(lambda: None, idle=True)

    @property
    def paused(self) -> bool:
        """Whether `pause` was called, and `resume` was not since."""
        return self._paused

    def resume(self) -> None:
        """Lets the thread draw answers again."""
        with self._changed:
            self._paused = False
            self._changed.notify()

    def close(self) -> None:
        """End the thread; jobs that are not done have no more pieces."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self.join()
        while self._calls:
            _raise_in(self._calls.popleft()[2], Refusal(503, ENDING))

    def run(self) -> None:
        """See `threading.Thread`."""
        try:
            while self._wait():
                self._end(self._engine.step())
        except BaseException as error:
            with self._changed:
                self.failure, jobs, calls = error, [*self._jobs.values()], [*self._calls]
                self._jobs = {}
                self._calls.clear()
            for _, _, result in calls:
                _raise_in(result, error)
            for job in jobs:
                for answer in range(job.request.answers):
                    job.fail(answer, Refusal(500, f"the engine failed ({type(error).__name__})"))
            self._on_failure()

    def _wait(self) -> bool:
        """Wait for work, and pass it on to the engine; whether there is to be more."""
        with self._changed:
            while not (self._closed or self._dropped or self._engine.busy or self._calls or self._begins):
                self._changed.wait()
            while self._dropped:
                job = self._dropped.popleft()
                if job in self._new:
                    self._new.remove(job)
                self._engine.cancel(job.request)
                self._jobs.pop(job.request, None)
            while self._begins:
                job = self._new.popleft()
                job.version = self.version
                self._engine.add(job.request)
            busy, calls = self._engine.busy, [*self._calls]
            self._calls = deque(one for one in calls if one[1] and busy)
        for function, idle, result in calls:
            if not (idle and busy):
                _set(result, function)
        return not self._closed

    @property
    def _begins(self) -> bool:
        """Whether there is a job for the engine."""
        return bool(self._new) and not self._paused

    def _end(self, rows: Sequence[Row]) -> None:
        """Send the last pieces of answers; jobs whose answers are all done are forgotten."""
        for row in rows:
            if row.request in self._jobs:
                self._jobs[row.request].end(row)
        with self._changed:
            for request in {row.request for row in rows}:
                if all(row.done for row in request.rows):
                    self._jobs.pop(request, None)


def _set[T](result: Future[T], function: Callable[[], T]) -> None:
    """Set what a function returns or raises; it is not called where nobody waits for that any more."""
    if not result.set_running_or_notify_cancel():
        return
    try:
        result.set_result(function())
    except Exception as error:
        result.set_exception(error)


def _raise_in(result: Future[Any], error: BaseException) -> None:
    """Set an error where somebody waits."""
    if result.set_running_or_notify_cancel():
        result.set_exception(error)
