"""What happens again and again is told once: when it begins, and anew after it was quiet for long."""

from __future__ import annotations

from collections import Counter


class Episodes:
    """Occurrences by kind. One begins an episode when none of its kind came in the `quiet` steps before it."""

    def __init__(self, quiet: int) -> None:
        self._quiet = quiet
        self._last: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        """Occurrences of each kind so far, told or not."""

    def begins(self, kind: str, step: int) -> bool:
        """Count an occurrence at `step`; whether it begins an episode."""
        last = self._last.get(kind)
        self._last[kind] = step
        self.counts[kind] += 1
        return last is None or abs(step - last) > self._quiet
