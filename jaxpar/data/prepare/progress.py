"""Progress of a preparation: a bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from jaxpar.pages.units import percent

SECONDS_BETWEEN_LINES = 15.0


class Meter:
    """Counts the bytes of input that are done in one phase."""

    def __init__(self, console: Console, what: str, total: int, done: int, bar: Progress | None) -> None:
        self._console, self._what, self._total, self._done = console, what, max(total, 1), done
        self._bar, self._printed_at = bar, time.monotonic()
        self._task = None if bar is None else bar.add_task(what, total=self._total, completed=done, note="")
        self._begun: dict[int, int] = {}
        self._note = ""

    def read(self, unit: int, size: int) -> None:
        """`size` more bytes of a unit that is not done were read."""
        self._begun[unit] = self._begun.get(unit, 0) + size
        self._show()

    def advance(self, size: int, note: str = "", unit: int | None = None) -> None:
        """`size` more bytes are done, those of `unit`; `note` is text to add."""
        self._done, self._note = self._done + size, note
        if unit is not None:
            self._begun.pop(unit, None)
        self._show()

    def _show(self) -> None:
        done = min(self._done + sum(self._begun.values()), self._total)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, note=self._note)
        elif time.monotonic() - self._printed_at >= SECONDS_BETWEEN_LINES:
            self._printed_at = time.monotonic()
            share = f"{self._what}: {percent(done, self._total, digits=0)}"
            self._console.print(f"{share}, {self._note}" if self._note else share, soft_wrap=True)


@contextmanager
def metering(console: Console, what: str, total: int, done: int = 0) -> Iterator[Meter]:
    """A meter of `total` bytes, of which `done` were done before."""
    if not console.is_terminal:
        yield Meter(console, what, total, done, None)
        return
    columns = BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    texts = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[note]}", markup=False)
    with Progress(texts[0], *columns, texts[1], console=console, transient=True) as bar:
        yield Meter(console, what, total, done, bar)
