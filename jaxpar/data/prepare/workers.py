"""Tasks run by several processes, which end with the process that started them, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from jaxpar.config.errors import UserError

type Report = Callable[[object], None]
type Maker[A, T, R] = Callable[[A, Report], Callable[[T], R]]


def run_tasks[A, T, R](
    make: Maker[A, T, R], argument: A, tasks: Sequence[T], processes: int, during: Report = lambda _: None
) -> Iterator[R]:
    """The results of the tasks, in order of completion.

    Args:
        make: a module-level function that makes, once per process, the function that runs a task.
        argument: passed to `make`, with a function that reports to this process while a task runs.
        tasks: handed out one by one.
        processes: number of processes; with 1 the tasks run in this one.
        during: called here with what tasks report.

    Raises:
        UserError: a task raised it, or a process was killed.
        OSError: a task raised it.
    """
    # Each process works on one document at a time; the library's own threads would only compete.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if processes == 1:
        work = make(argument, during)
        yield from (work(task) for task in tasks)
        return
    workers = [_start(make, argument) for _ in range(min(processes, len(tasks)))]
    try:
        yield from _dispatch(workers, iter(tasks), during)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()


class _Worker(NamedTuple):
    process: BaseProcess
    pipe: Connection


def _start[A, T, R](make: Maker[A, T, R], argument: A) -> _Worker:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(make, argument, there), daemon=True)
    process.start()
    there.close()
    return _Worker(process, here)


def _dispatch[T](workers: list[_Worker], tasks: Iterator[T], during: Report) -> Iterator[Any]:
    busy: dict[Connection, _Worker] = {}

    def give(worker: _Worker) -> None:
        for task in tasks:
            try:
                worker.pipe.send(task)
            except (BrokenPipeError, ConnectionResetError):
                raise UserError(_ended(worker.process)) from None
            busy[worker.pipe] = worker
            return

    for worker in workers:
        give(worker)
    while busy:
        for pipe in wait(list(busy)):
            assert isinstance(pipe, Connection)
            worker = busy[pipe]
            try:
                kind, answer = pipe.recv()
            except (EOFError, ConnectionResetError):
                raise UserError(_ended(worker.process)) from None
            if kind == "during":
                during(answer)
            elif kind == "done":
                del busy[pipe]
                give(worker)
                yield answer
            else:
                raise _failure(kind, answer)


def _failure(kind: str, answer: Any) -> Exception:
    if kind == "user":
        return UserError(answer)
    return OSError(*answer) if kind == "system" else RuntimeError(f"a worker process failed:\n{answer}")


def _ended(process: BaseProcess) -> str:
    process.join(5)
    code = process.exitcode
    if code is not None and code < 0:
        how = f"by {signal.Signals(-code).name}" + (", as when memory runs out" if -code == signal.SIGKILL else "")
    else:
        how = f"with exit code {code}"
    return f"a worker process was ended {how}; the same command continues (fewer --processes need less memory)"


def _work[A, T, R](make: Maker[A, T, R], argument: A, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    made: list[Callable[[T], R]] = []

    def do(task: T) -> R:
        if not made:
            made.append(make(argument, lambda answer: pipe.send(("during", answer))))
        return made[0](task)

    try:
        while True:
            pipe.send(_outcome(do, pipe.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # The other side is gone.


def _outcome[T](do: Callable[[T], object], task: T) -> tuple[str, object]:
    try:
        return "done", do(task)
    except UserError as error:
        return "user", str(error)
    except OSError as error:
        return "system", (error.errno, error.strerror, error.filename)
    except Exception:  # Raised again by the process that dispatches the tasks.
        return "bug", traceback.format_exc()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is a worker"
    wait([parent.sentinel])
    os._exit(1)
