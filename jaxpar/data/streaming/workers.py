"""Processes that tokenize blocks while a run trains; they begin with the first tasks and end with the run.

They are started as commands: `multiprocessing` would import the program that trains in each of them.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple

from jaxpar.config.errors import UserError
from jaxpar.data.prepare.job import TokenForm
from jaxpar.data.streaming.block import BlockTask, BlockTokens

type Tasks = queue.SimpleQueue[tuple[Future[BlockTokens], BlockTask] | None]


class Worker(NamedTuple):
    """A process, and the thread that hands tasks to it."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    thread: threading.Thread


class Workers:
    """Worker processes, which take tasks in the order in which these are asked for.

    Args:
        form: of the tokens.
        count: processes.
    """

    def __init__(self, form: TokenForm, count: int) -> None:
        self._form, self.count = form, count
        self._tasks: Tasks = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.started: list[Worker] = []
        self.close = weakref.finalize(self, _end, self._tasks, self.started)
        """Ends the processes."""

    def submit(self, task: BlockTask) -> Future[BlockTokens]:
        """The tokens of a block, later. Its result raises `UserError` where it has none."""
        future: Future[BlockTokens] = Future()
        with self._lock:
            if len(self.started) < self.count:
                self.started.append(_start(self._form, self._tasks))
        self._tasks.put((future, task))
        return future


def _start(form: TokenForm, tasks: Tasks) -> Worker:
    pipe, other = Pipe()
    command = [sys.executable, "-m", "jaxpar.data.streaming.worker", str(other.fileno())]
    # In a session of its own, so that Ctrl-C reaches the run alone, which then closes the pipe.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()], start_new_session=True)
    other.close()
    thread = threading.Thread(target=_hand_out, args=(form, process, pipe, tasks), daemon=True)
    thread.start()
    return Worker(process, pipe, thread)


def _hand_out(form: TokenForm, process: subprocess.Popen[bytes], pipe: Connection, tasks: Tasks) -> None:
    """Give tasks to a process, one after the other."""
    with suppress(OSError):  # the first task says why
        pipe.send(form)
    while (item := tasks.get()) is not None:
        future, task = item
        if not future.set_running_or_notify_cancel():
            continue
        try:
            pipe.send(task)
            kind, answer = pipe.recv()
        except (EOFError, OSError):
            future.set_exception(UserError(_exit_reason(process.wait())))
            continue
        except Exception as error:  # else the run would wait for it without end
            future.set_exception(error)
            continue
        if kind == "done":
            future.set_result(answer)
        else:
            future.set_exception(UserError(answer) if kind == "user" else RuntimeError(f"a worker failed:\n{answer}"))


def _exit_reason(code: int) -> str:
    if code < 0:
        how = f"by {signal.Signals(-code).name}" + (", as when memory runs out" if -code == signal.SIGKILL else "")
    else:
        how = f"with exit code {code}"
    return (
        f"a process that tokenizes ended {how}; the same command continues from the newest checkpoint (fewer "
        "data.workers need less memory)"
    )


def _end(tasks: Tasks, started: list[Worker]) -> None:
    with suppress(queue.Empty):
        while True:
            item = tasks.get_nowait()
            if item is not None:
                item[0].cancel()
    for worker in started:
        worker.process.kill()
        tasks.put(None)
    for worker in started:
        worker.thread.join()
        worker.process.wait()
        worker.pipe.close()
