"""Repeated occurrences are reported once: when they begin, and again after a long quiet time."""

from __future__ import annotations

from collections import Counter


class Episodes:
    """Occurrences by kind. One begins an episode when none of its kind came in the `quiet` steps before it."""

    def __init__(self, quiet: int) -> None:
        self._quiet = quiet
        self._last: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        """Occurrences of each kind so far, reported or not."""

    def begins(self, kind: str, step: int) -> bool:
        """Count an occurrence at `step`; whether it begins an episode."""
        last = self._last.get(kind)
        self._last[kind] = step
        self.counts[kind] += 1
        return last is None or abs(step - last) > self._quiet
