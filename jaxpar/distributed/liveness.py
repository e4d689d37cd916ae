"""Reports of this process to the others, and its exit when one of them is lost.

The loop reports its activity with `at`, which does nothing without other processes. Nothing here imports JAX, so that a
command can use it before.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from types import TracebackType

from jaxpar.config.schema import DistributedConfig
from jaxpar.distributed.peer import Peer
from jaxpar.distributed.step_limit import StepLimit
from jaxpar.distributed.verdicts import Mark
from jaxpar.distributed.watch import Watch

SETTLE_S = 5.0
"""Seconds that an error waits for a report that another process died, which may have caused it."""
WRITE_S = 2.0
"""Time limit for writing the last sentence: the reader of the output may be gone."""
SHOW_CURSOR = b"\x1b[?25h"


class _Job:
    """The watch of this process, and the limits of the configuration."""

    def __init__(self, process: int, watch: Watch, limits: DistributedConfig):
        self.process, self.watch, self.limits = process, watch, limits
        self.step_limit = StepLimit(limits.step_timeout_s)


_job: _Job | None = None


def watch_over(process: int, processes: int, peers: dict[int, Peer], limits: DistributedConfig) -> None:
    """Watch `peers` from now on until the interpreter ends; a lost peer ends this process with exit code 1.

    An uncaught exception is reported to the others before the process ends.
    """
    global _job
    mark = Mark(0, "starting", limits.pause_timeout_s, "distributed.pause_timeout_s")
    watch = Watch(process, processes, peers, timeout_s=limits.heartbeat_timeout_s, mark=mark, end=_end)
    _job = _Job(process, watch, limits)
    atexit.register(_leave)
    sys.excepthook = _unhandled


def report_activity(where: str, *, in_step: bool = False, busy: bool = False) -> None:
    """Report that the main thread is now at `where`, in words that follow "it was": `compiling the step`, `in step 12`.

    All processes report the same in the same order. In a step, `distributed.step_timeout_s` counts from here, and
    elsewhere `distributed.pause_timeout_s`. Where a process is always `busy` (it computes, reads or writes), one that
    does nothing while the others wait for it ends the job before.
    """
    if _job is None:
        return
    if in_step:
        limit = _job.step_limit
        _job.watch.mark(where, limit.step_s, "distributed.step_timeout_s", limit.pause_s)
    else:
        _job.watch.mark(where, _job.limits.pause_timeout_s, "distributed.pause_timeout_s", busy=busy)


def stepped(seconds: float) -> None:
    """A step is done and took so long, without the time since the previous one: later ones are judged by it."""
    if _job is not None:
        _job.step_limit.took(seconds)


def restarted() -> None:
    """The next step is the first from a checkpoint: it and some more may take longer."""
    if _job is not None:
        _job.step_limit.start_over()


def settle() -> None:
    """Wait for a report that another process died, which may have caused an error here; it ends this process."""
    if _job is not None:
        time.sleep(SETTLE_S)


def depart(code: int, why: str) -> int:
    """Leave the job before its end: the reason is sent to the others, and this process ends with `code`.

    Without other processes nothing happens, and `code` is returned.
    """
    if _job is None:
        return code
    _job.watch.fail(why)
    _stop(code)
    raise AssertionError("the process has ended")


def announce(sentence: str) -> None:
    """Print a sentence from any thread, at once; of several processes, the first does."""
    if _job is None or _job.process == 0:
        _show(f"jaxpar: {sentence}\n")


def end(code: int, sentence: str) -> None:
    """End this process from any thread, at once: the sentence is printed as by `announce`, and sent to the others."""
    announce(sentence)
    if _job is not None:
        _job.watch.fail(sentence)
    _stop(code)


def _leave() -> None:
    if _job is not None:
        report_activity("ending")
        _job.watch.leave()


def _end(sentence: str) -> None:
    """The verdict of the watch: one sentence on the screen, and exit code 1."""
    _show(f"jaxpar: {sentence}\n")
    _stop(1)


def _show(text: str) -> None:
    writer = threading.Thread(target=_write, args=(text,), daemon=True)
    writer.start()
    writer.join(WRITE_S)


def _write(text: str) -> None:
    with contextlib.suppress(OSError):
        # Not through sys.stderr: the main thread may hold its lock.
        os.write(2, text.encode(errors="replace"))


def _stop(code: int) -> None:
    """End without JAX's own shut-down, which would wait minutes for the others."""
    flusher = threading.Thread(target=_flush, daemon=True)
    flusher.start()
    flusher.join(WRITE_S)
    os._exit(code)


def _flush() -> None:
    with contextlib.suppress(OSError):
        if os.isatty(1):  # A progress bar hides it.
            os.write(1, SHOW_CURSOR)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _unhandled(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    settle()
    sys.__excepthook__(kind, error, trace)
    lines = str(error).splitlines()
    depart(1, f"{kind.__name__}{': ' + lines[0] if lines else ''}")
