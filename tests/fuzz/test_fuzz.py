"""Combinations of features have the numbers of one device: fixed ones, and those that `make fuzz` found to fail."""

from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from jaxpar.config.errors import UserError
from tests.fuzz import case
from tests.fuzz.case import BY_PLAN, EQUAL, LATE, REFUSED, SIZES, WRONG, draw, parse

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
    assert sum(case.refused() == ("", "") for case in cases[:10]) >= 5


def raises(error: Exception):
    def function(*_arguments: object):
        raise error

    return function


@pytest.mark.parametrize(
    ("name", "function", "outcome"),
    [
        ("_numbers", lambda _config: [{"loss": 1.0}], (EQUAL, "")),
        ("_numbers", raises(UserError("a sentence")), (LATE, "a sentence")),
        ("resolve_config", raises(UserError("a sentence")), (REFUSED, "a sentence")),
        ("make_plan", raises(UserError("a sentence")), (BY_PLAN, "a sentence")),
        ("_numbers", lambda _config: [{"loss": float("nan")}], (WRONG, "loss of step 0: nan is not nan")),
        ("_numbers", lambda _config: [{"loss": float("inf")}], (WRONG, "loss of step 0: inf is not inf")),
        ("resolve_config", raises(KeyError("key")), (WRONG, "KeyError: 'key'")),
    ],
)
def test_refusals_crashes_and_numbers_that_are_not_finite_are_not_equal(
    name: str, function: object, outcome: tuple[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(case, name, function)
    assert parse("fsdp=2").outcome() == outcome


EXACT, ROUGH = [{"loss": 1.0}], [{"loss": 1.0001}]


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([EXACT, ROUGH, EXACT, EXACT], []),
        ([EXACT, ROUGH, EXACT, [{"loss": 1.0 + 1e-8}]], ["loss of step 0: 1.00000001 is not 1.0"]),
        ([EXACT, ROUGH, TypeError("mixed")], ["loss of step 0: 1.0001 is not 1.0", "and no numbers in 64 bits: mixed"]),
        ([EXACT, [{"loss": 1.0 + 1e-6}]], []),
        ([EXACT, [{"loss": 2.0}], EXACT, EXACT], ["loss of step 0: 2.0 is not 1.0"]),
        ([EXACT, [{"loss": np.inf}], EXACT, EXACT], ["loss of step 0: inf is not 1.0"]),
        ([[{"loss": np.nan}], [{"loss": np.nan}], EXACT, EXACT], ["loss of step 0: nan is not nan"]),
    ],
    ids=["rounding", "another result", "not computed", "equal", "too large", "infinite", "not a number"],
)
def test_float32_numbers_that_differ_are_compared_in_64_bits(
    numbers: list[object], found: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(case, "wide_numbers", nullcontext)
    monkeypatch.setattr(case, "_numbers", Mock(side_effect=numbers))
    assert parse("fsdp=2").differences() == found
