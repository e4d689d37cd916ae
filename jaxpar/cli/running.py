"""Start and end of commands: the decorator of their `main`, exit codes, and commands that run others."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Protocol

from jaxpar.compiler.quiet import quiet_imports
from jaxpar.config.errors import UserError
from jaxpar.distributed.ctrl_c import INTERRUPTED
from jaxpar.distributed.liveness import depart


class Command(Protocol):
    """The `main` of a command, which returns its exit code."""

    def __call__(self, arguments: Sequence[str] | None = None, /) -> int: ...


def command(interrupted: str = "interrupted") -> Callable[[Callable[[Sequence[str]], int | None]], Command]:
    """Decorates the `main` of a command, and so decides how commands end.

    The decorated function gets the arguments and returns an exit code, or None for 0. A `UserError` is printed in one
    sentence and ends with 2. Ctrl-C ends with 130, and prints `interrupted`. In a job of several processes the others
    learn why this one ends.
    """

    def decorate(main: Callable[[Sequence[str]], int | None]) -> Command:
        @wraps(main)
        def run(arguments: Sequence[str] | None = None, /) -> int:
            quiet_imports()
            warnings.filterwarnings("ignore", module=r"(jax|orbax|flax|grain|tensorboardX)\b.*")
            try:
                code = main(sys.argv[1:] if arguments is None else arguments)
                sys.stdout.flush()
                return code or 0
            except UserError as error:
                return stop(2, str(error))
            except KeyboardInterrupt:
                print(f"jaxpar: {interrupted}", file=sys.stderr)
                return depart(INTERRUPTED, "interrupted")
            except BrokenPipeError:
                if not _reader_is_gone():
                    raise
                return 0

        return run

    return decorate


def run_command(words: Sequence[str], out: Path | None = None) -> int:
    """Run `python -m WORDS` in a separate process; returns its exit code.

    `out` is a file for what it prints, which is there only where it succeeded. Ctrl-C reaches it from the terminal and
    SIGTERM from here, so that a run saves before this returns.

    Raises:
        KeyboardInterrupt: one of the signals came, and the process has ended.
    """
    came, process = list[int](), list[subprocess.Popen[bytes]]()
    part = None if out is None else out.with_name(f"{out.name}.part")

    def forward(received: int, _frame: object) -> None:
        came.append(received)
        for one in process if received == signal.SIGTERM else ():
            one.terminate()

    before = {one: signal.signal(one, forward) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        with nullcontext() if part is None else part.open("wb") as file:
            process.append(subprocess.Popen([sys.executable, "-m", *words], stdout=file))
            code = process[0].wait()
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    if came:
        raise KeyboardInterrupt
    if out is not None and part is not None and code == 0:
        part.replace(out)
    return code


def without_gpus() -> None:
    """Hides GPUs from a command that computes nothing on devices: JAX would take their memory."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def report(text: str) -> None:
    """Print a sentence to the user beside the output, on standard error."""
    print(text, file=sys.stderr)


def stop(code: int, why: str) -> int:
    """Prints why the command ends, leaves the job if it is in one, and returns the exit code."""
    print(f"jaxpar: {why}", file=sys.stderr)
    return depart(code, why)


def _reader_is_gone() -> bool:
    """Whether a reader of the output, such as `head`, has closed the pipe; what is left of the output is dropped."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return gone
