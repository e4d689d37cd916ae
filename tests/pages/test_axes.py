"""Ticks at round numbers."""

from math import log10

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpar.pages.axes import byte_ticks, ticks


@pytest.mark.parametrize(
    ("low", "high", "parts", "expected"),
    [
        (0, 33, 10, [0, 5, 10, 15, 20, 25, 30]),
        (0.98, 1.27, 8, [1.0, 1.05, 1.1, 1.15, 1.2, 1.25]),
        (40, 74, 6, [40, 50, 60, 70]),
        (0, 1e-5, 4, [0, 5e-6, 1e-5]),
        (3, 3, 5, [3]),
    ],
)
def test_ticks_are_multiples_of_one_two_or_five(low: float, high: float, parts: int, expected: list[float]) -> None:
    assert ticks(low, high, parts) == pytest.approx(expected)


@given(st.floats(0, 1e9), st.floats(1e-9, 1e9), st.integers(2, 12))
def test_any_range_has_ticks_inside_it_but_no_more_than_asked_for(low: float, length: float, parts: int) -> None:
    if length < 1e-6 * low:
        return
    found = ticks(low, low + length, parts)
    assert len(found) <= parts + 1
    assert all(low - 1e-6 * length <= tick <= low + length + 1e-6 * length for tick in found)
    assert len(found) >= parts // 3
    if len(found) > 1:
        step = found[1] - found[0]
        assert round(step / 10 ** round(log10(step) // 1), 3) in (1, 2, 5, 10)


def test_ticks_of_bytes_are_powers_of_two() -> None:
    assert byte_ticks(80 * 2**30, 6) == [i * 16 * 2**30 for i in range(6)]
    assert byte_ticks(9.5 * 2**20, 6) == [i * 2 * 2**20 for i in range(5)]
