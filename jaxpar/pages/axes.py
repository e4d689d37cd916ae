"""Ticks of axes at round numbers."""

from __future__ import annotations

from math import ceil, floor, log10

from jaxpar.pages.units import KIB

NEARLY = 1e-9
"""Share of a step by which a tick may lie outside, to absorb rounding."""


def ticks(low: float, high: float, parts: int) -> list[float]:
    """The multiples from `low` to `high` of 1, 2 or 5 times a power of ten, which divides them into `parts` at most."""
    length = high - low
    if length <= 0:
        return [low]
    power = 10.0 ** floor(log10(length / parts))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if length <= parts * power * factor)
    return [i * step for i in range(ceil(low / step - NEARLY), floor(high / step + NEARLY) + 1)]


def byte_ticks(high: float, parts: int) -> list[float]:
    """The multiples from 0 to `high` of a power of two of KiB."""
    step = KIB
    while high / step > parts:
        step *= 2
    return [float(step * i) for i in range(int(high / step) + 1)]
