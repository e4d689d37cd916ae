"""Memory over the schedule: how much is live when, where the peak is, and what is live there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxpar.compiler.program.memory.buffers import Allocation, Buffers, Value


@dataclass(frozen=True)
class Occupant:
    """Bytes of one value at one moment."""

    value: Value
    allocation: Allocation
    bytes: int
    """Bytes that count as this value's; less than its size where another value shares them."""
    shared_with: tuple[Value, ...]
    """Other values in exactly the same bytes at that moment, such as a loop's view of its input."""


def timeline(buffers: Buffers) -> np.ndarray:
    """Live bytes at each place of `buffers.order` [places].

    In the shared allocation, bytes in which some value lives; values that share bytes count once. Every other
    allocation (inputs, results, constants) is held from start to end. XLA's own peak is computed from the same
    lifetimes and agrees within kilobytes.
    """
    live = np.zeros(len(buffers.order), np.int64)
    for allocation in buffers.allocations:
        if not allocation.on_host:
            live += _live(allocation, len(buffers.order)) if allocation.shared else allocation.size
    return live


def peak(buffers: Buffers) -> tuple[int, int]:
    """(place in the order, bytes) where most is live; the first of equals."""
    live = timeline(buffers)
    place = int(live.argmax())
    return place, int(live[place])


def occupants(buffers: Buffers, place: int) -> list[Occupant]:
    """Values live at `place`, largest first. Every live byte counts for one value: the sum is the timeline there."""
    found: list[Occupant] = []
    for allocation in buffers.allocations:
        if allocation.on_host:
            continue
        if allocation.shared:
            found.extend(_cover(allocation, [v for v in allocation.values if v.first_live <= place <= v.last_live]))
        else:
            values = [v for v in allocation.values if v.first_live <= place <= v.last_live] or list(allocation.values)
            first = max(
                values, key=lambda v: (v.size, -v.first_live), default=Value("", (), allocation.size, 0, "", -1, -1)
            )
            found.append(Occupant(first, allocation, allocation.size, tuple(v for v in values if v is not first)))
    return sorted(found, key=lambda occupant: -occupant.bytes)


def _live(allocation: Allocation, places: int) -> np.ndarray:
    """Bytes of an allocation in which some value lives, at each place."""
    values = [v for v in allocation.values if v.first_live >= 0]
    bounds = np.unique([b for v in values for b in (v.offset, v.end)])
    widths = np.diff(bounds)
    holders, change = np.zeros(len(widths), np.int64), np.zeros(places + 1, np.int64)
    events = [event for v in values for event in ((v.first_live, 1, v), (v.last_live + 1, -1, v))]
    for place, step, value in sorted(events, key=lambda event: event[0]):
        span = slice(*np.searchsorted(bounds, (value.offset, value.end)))
        before = holders[span] > 0
        holders[span] += step
        change[place] += ((holders[span] > 0).astype(np.int64) - before) @ widths[span]
    return change[:places].cumsum()


def _cover(allocation: Allocation, values: Sequence[Value]) -> list[Occupant]:
    """Share the bytes in which `values` live among them: larger first, of equals the one born first."""
    found: list[Occupant] = []
    used: list[tuple[int, int]] = []
    alike: dict[tuple[int, int], list[Value]] = {}
    for value in values:
        alike.setdefault((value.offset, value.size), []).append(value)
    for (offset, size), same in sorted(alike.items(), key=lambda item: -item[0][1]):
        inside, reached = 0, offset
        for begin, end in sorted(used):  # bytes that values before it have
            inside += max(0, min(end, offset + size) - max(begin, reached))
            reached = max(reached, end)
        first, *others = sorted(same, key=lambda v: v.first_live)
        if inside < size:
            found.append(Occupant(first, allocation, size - inside, tuple(others)))
        used.append((offset, offset + size))
    return found
