"""Slots: where each rank keeps values from one action for a later one, in as few buffers as possible."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Lifetime:
    """From the first to the last tick in which a value must be in its slot, both included."""

    first: int
    last: int


def assign_slots[Name: Hashable](lifetimes: Mapping[Name, Lifetime]) -> dict[Name, int]:
    """A slot for each value such that no two that live at once share one; as few slots as ever live at once.

    Values are taken in order of their first tick and get the lowest slot that is free (an interval graph, so greedy
    is optimal).
    """
    slots: dict[Name, int] = {}
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for name in sorted(lifetimes, key=lambda name: (lifetimes[name].first, lifetimes[name].last)):
        while busy and busy[0][0] < lifetimes[name].first:
            heapq.heappush(free, heapq.heappop(busy)[1])
        slot = heapq.heappop(free) if free else len(busy)
        slots[name] = slot
        heapq.heappush(busy, (lifetimes[name].last, slot))
    return slots


def free_slot[Name: Hashable](
    slots: Mapping[Name, int], lifetimes: Mapping[Name, Lifetime], tick: int, count: int
) -> int | None:
    """A slot below `count` that holds nothing in `tick`; None where all are taken."""
    taken = {slots[name] for name, life in lifetimes.items() if life.first <= tick <= life.last}
    return next((slot for slot in range(count) if slot not in taken), None)


def slot_count(slots: Iterable[int]) -> int:
    """Slots that a buffer needs."""
    return max(slots, default=-1) + 1
