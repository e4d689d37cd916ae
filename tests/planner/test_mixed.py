"""On hosts of several kinds stages are of one kind each, and as long as their GPUs are fast where that saves time."""

from __future__ import annotations

from jaxpar.planner.mixed import stage_lengths


def test_stages_are_as_long_as_their_devices_are_fast():
    assert stage_lengths(30, (1.0, 1.0, 2.0)) == (8, 7, 15) or stage_lengths(30, (1.0, 1.0, 2.0)) == (7, 8, 15)
    assert stage_lengths(4, (1.0, 100.0)) == (1, 3)
    lengths = stage_lengths(32, (3.0, 5.0))
    slowest = max(layers / speed for layers, speed in zip(lengths, (3.0, 5.0), strict=True))
    assert all(slowest <= max(first / 3.0, (32 - first) / 5.0) for first in range(1, 32))
