"""Combinations of features have the numbers of one device: fixed ones, and those that `make fuzz` found to fail."""

from pathlib import Path

import pytest

from tests.fuzz.case import SIZES, draw, parse

ROWS = [line for line in Path(__file__).with_name("rows.txt").read_text().splitlines() if line and line[0] != "#"]


@pytest.mark.matrix(quick=tuple(ROWS[:2]), ci=2)
@pytest.mark.parametrize("row", ROWS)
def test_a_combination_has_the_numbers_of_one_device(row: str, monkeypatch: pytest.MonkeyPatch):
    for module, name, value in SIZES:
        monkeypatch.setattr(module, name, value)
    assert parse(row).differences() == []


def test_a_seed_is_a_combination_that_can_be_written_and_most_are_configurations():
    cases = [draw(seed) for seed in range(20)]
    assert cases == [parse(str(draw(seed))) for seed in range(20)]
    assert sum(not case.refused() for case in cases) >= 10
