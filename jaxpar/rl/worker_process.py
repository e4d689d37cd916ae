"""A child process for the user's code, killed if a request takes too long. Requests and answers are lines of JSON.

`WorkerProcess` is the run's side of the pipes, `serve` the child's.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted
from jaxpar.config.strict_json import json_text

START_SECONDS = 120.0
"""Longest time that the import of a user's file may take."""


class WorkerError(Exception):
    """A request has no answer; the text says why."""


class WorkerProcess:
    """A worker that runs `python -m MODULE ARGUMENTS`, which calls `serve`.

    Args:
        module: the module of the worker.
        arguments: command-line arguments of the module.
        label: name of the user's function, for messages.
        key: the configuration key that names it, for messages.
        seconds: time limit of a request.

    Raises:
        UserError: it cannot start; its first line says why.
    """

    def __init__(self, module: str, arguments: Sequence[str], label: str, key: str, seconds: float):
        self.label, self._key, self._seconds = label, key, seconds
        self._command = [sys.executable, "-m", module, *arguments]
        self._begin()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request. Raises `WorkerError`."""
        if self._process.poll() is not None:
            self.close()
            try:
                self._begin()
            except UserError as error:  # its file has changed
                raise WorkerError(str(error)) from None
        self._write(json_text(request) + "\n")
        answer = self._read(self._seconds)
        if "error" in answer:
            raise WorkerError(f"{self.label}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process; the next request begins another."""
        self._end()

    def _begin(self) -> None:
        # A new session, so that Ctrl-C reaches the run alone, which then closes the pipe.
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=_put_lines, args=(self._process, self._lines), daemon=True)
        reader.start()
        self._end = weakref.finalize(self, _end, self._process, reader)
        try:
            answer = self._read(START_SECONDS)
        except WorkerError as error:
            raise UserError(f"{self._key}: {error}") from None
        if "error" in answer:
            self.close()
            raise UserError(answer["error"])

    def _write(self, line: str) -> None:
        late = threading.Timer(self._seconds, self.close)  # a write blocks once the pipe is full and nobody reads
        late.start()
        try:
            assert self._process.stdin is not None, "it is a pipe"
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except (OSError, ValueError):  # the child closed the pipe, or `late` did
            why = "its process ended" if self._end.alive else f"it did not read for {self._seconds:g} s"
            raise WorkerError(f"{self.label}: {why}") from None
        finally:
            late.cancel()
            late.join()  # the timer must not end the next process

    def _read(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.close()
            limit = "rl.reward_seconds" if seconds == self._seconds else "its import"
            raise WorkerError(f"{self.label}: it took more than {seconds:g} s ({limit})") from None
        if not line:
            raise WorkerError(f"{self.label}: its process ended with exit code {self._process.wait()}")
        try:
            return json.loads(line)
        except ValueError:
            self.close()
            raise WorkerError(f"{self.label}: it wrote {quoted(line.strip()[:80])} between its answers") from None


def serve(load: Callable[[], Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
    """Answer requests until standard input ends. What the user's code prints goes to stderr.

    Args:
        load: imports the user's code, and returns the function that answers a request; its `UserError` is sent instead.
    """
    # Neither the user's code nor a process that it starts inherits the pipes.
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    say = lambda fields: print(json_text(fields), file=answers, flush=True)
    try:
        answer = load()
    except UserError as error:
        return say({"error": str(error)})
    say({"ready": True})
    for line in requests:
        try:
            made = answer(json.loads(line))
        except Exception as error:
            made = {"error": f"{type(error).__name__}: {error}"}
        say(made)


def _end(process: subprocess.Popen[str], reader: threading.Thread) -> None:
    """End a process and its children, and close its pipes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the leader of its session
    process.wait()
    reader.join(timeout=5)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None, "both are pipes"
        with suppress(OSError):  # what was not sent yet is lost with the process
            pipe.close()


def _put_lines(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    """The lines that a process prints, and an empty one at its end."""
    assert process.stdout is not None, "it is a pipe"
    for line in process.stdout:
        lines.put(line)
    lines.put("")
