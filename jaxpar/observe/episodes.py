"""Repeated occurrences are reported once: when they begin, and again after a long quiet time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping


class Episodes:
    """Occurrences by kind. One begins an episode when none of its kind came in the `quiet` steps before it.

    Args:
        quiet: steps.
        apart_s: of a kind, the least seconds between the beginnings of two episodes; what comes in between is only
            counted.
        clock: in seconds.
    """

    def __init__(
        self, quiet: int, apart_s: Mapping[str, float] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quiet, self._apart_s, self._clock = quiet, apart_s or {}, clock
        self._last: dict[str, int] = {}
        self._began: dict[str, float] = {}
        """Start time of the last episode of each kind of `apart_s`."""
        self.occurrences: Counter[str] = Counter()
        """Occurrences of each kind so far, reported or not."""

    def begins(self, kind: str, step: int) -> bool:
        """Count an occurrence at `step`; whether it begins an episode."""
        last = self._last.get(kind)
        self._last[kind] = step
        self.occurrences[kind] += 1
        return (last is None or abs(step - last) > self._quiet) and self._apart(kind)

    def _apart(self, kind: str) -> bool:
        """Whether an episode may begin so soon after the last one."""
        if kind not in self._apart_s:
            return True
        now = self._clock()
        if kind in self._began and now - self._began[kind] < self._apart_s[kind]:
            return False
        self._began[kind] = now
        return True
