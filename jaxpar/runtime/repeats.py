"""Patterns that repeat in a sequence."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple


class Repeat(NamedTuple):
    """Neighbouring entries of a sequence that are one pattern several times over."""

    first: int
    """The index of its first entry."""
    period: int
    """Entries of the pattern."""
    times: int

    @property
    def turns(self) -> list[slice]:
        """The entries of each time."""
        starts = range(self.first, self.first + self.times * self.period, self.period)
        return [slice(start, start + self.period) for start in starts]


def repeats(keys: Sequence[Hashable], longest: int | None = None) -> Iterator[Repeat]:
    """The whole sequence as repeats: from each index on, the one that saves most entries, of a pattern of at most
    `longest`; an entry that does not repeat is a pattern of its own."""
    first = 0
    while first < len(keys):
        most = (len(keys) - first) // 2
        periods = range(1, (most if longest is None else min(longest, most)) + 1)
        each = (Repeat(first, period, _times(keys, first, period)) for period in periods)
        best = max(each, key=lambda repeat: (repeat.times - 1) * repeat.period, default=Repeat(first, 1, 1))
        yield best
        first += best.period * best.times


def _times(keys: Sequence[Hashable], first: int, period: int) -> int:
    """The number of times that the `period` entries from `first` on come, one right after the other."""
    pattern, times = keys[first : first + period], 1
    while keys[first + times * period : first + (times + 1) * period] == pattern:
        times += 1
    return times
