"""The longest length that fits, found by doubling and bisection; which of several layouts goes furthest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Longest(NamedTuple):
    """The end of a search, in tokens."""

    fits: int
    """The greatest length tried that fits."""
    refused: int
    """The least length tried that does not, at most the tolerance above."""


def longest(
    fits: Callable[[int], bool], *, start: int, least: int, step: int, tolerance: float = 0.1
) -> Longest | None:
    """Doubles from `start` while it fits, then bisects by ratios; None where not even `least` fits.

    All lengths are multiples of `step`, and what is longer than a length that does not fit is taken not to fit either.
    """
    low, high = _up(start, step), _up(start, step)
    if fits(low):
        while fits(high := 2 * high):
            low = high
    elif fits(low := _up(least, step)):
        pass
    else:
        return None
    while high - low > max(step, tolerance * low):
        middle = _up(int(math.sqrt(low * high)), step)
        middle = middle if middle < high else high - step
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Longest(low, high)


def furthest[Name](
    candidates: Mapping[Name, tuple[Callable[[int], bool], int]], *, start: int, least: int, tolerance: float = 0.1
) -> tuple[Name, Longest] | None:
    """The candidate with the longest length, of (`fits`, step of lengths) by name; None where none fits any length.

    A later candidate is searched only where it fits more than the tolerance above the best of those before it.
    """
    best: tuple[Name, Longest] | None = None
    for name, (fits, step) in candidates.items():
        if best is None:
            found = longest(fits, start=start, least=least, step=step, tolerance=tolerance)
        else:
            beyond = _up(best[1].refused, step)
            found = longest(fits, start=beyond, least=beyond, step=step, tolerance=tolerance) if fits(beyond) else None
        best = (name, found) if found is not None else best
    return best


def _up(length: int, step: int) -> int:
    return max(1, math.ceil(length / step)) * step
