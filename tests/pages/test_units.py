"""Numbers are written with few digits, in a unit that suits them, and never with an exponent."""

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from jaxpar.pages.units import (
    GIB,
    MIB,
    clock,
    count,
    operations,
    parse_file_size,
    parse_size,
    percent,
    plain,
    plural,
    rate,
    seconds,
    size,
    three_digits,
)
from tests.sentences import refused

WRITTEN = {
    size: {
        (0,): "0 B", (512,): "512 B", (1536,): "1.5 KiB", (-3 * MIB,): "-3.0 MiB", (51.6 * GIB,): "51.6 GiB",
        (1000 * MIB,): "1000.0 MiB", (Fraction(3 * GIB, 2),): "1.5 GiB", (47.734 * GIB, 2): "47.73 GiB",
        (2**50,): "1024.0 TiB",
    },
    seconds: {  # 99.97 becomes neither 99.97 nor 100.0
        (0,): "0", (1.236,): "1.24 s", (0.0351,): "35.1 ms", (4.1e-6,): "4.10 us", (39.86,): "39.9 s",
        (39860,): "39,860 s", (99.97,): "100 s", (0.9997,): "1.00 s", (0.000123,): "123 us", (3e-11,): "0.0300 ns",
        (-0.25,): "-250 ms",
    },
    clock: {(75,): "1:15", (7650,): "2:07:30", (3 * 86400 + 4 * 3600,): "3d 04:00"},
    count: {
        (950,): "950", (1234,): "1.23k", (12345,): "12.3k", (999_960,): "1.00M", (8_030_261_248,): "8.03B",
        (70.55e9,): "70.5B", (405e9,): "405B", (15e12,): "15.0T",
    },
    operations: {(3.94e15,): "3.94 PFLOP", (500,): "500 FLOP"},
    plain: {
        (5.33249,): "5.332", (0.0125,): "0.0125", (39860.2,): "39,860", (1234.5, 3): "1,234", (float("inf"),): "inf",
    },
    three_digits: {
        (2.1,): "2.10", (9.996,): "10.0", (99.97,): "100", (1234.5,): "1,234", (0.01234,): "0.0123",
        (0.00001,): "0.0000100", (0,): "0.00", (float("inf"),): "inf",
    },
    rate: {(450e9,): "450 GB/s", (25e9,): "25 GB/s", (3.35e12,): "3.35 TB/s", (12.5e6,): "12.5 MB/s"},
    percent: {
        (0.1234,): "12.3%", (1, 8): "12.5%", (0, 0): "0.0%", (Fraction(3, 8),): "37.5%", (0.004567, 1, 2): "0.46%",
    },
    plural: {
        (0, "row"): "0 rows", (1, "row"): "1 row", (2, "batch"): "2 batches", (12_345, "document"): "12,345 documents",
        (1, "entry"): "1 entry", (3, "entry"): "3 entries", (2, "process"): "2 processes", (2, "array"): "2 arrays",
    },
}  # fmt: skip


@pytest.mark.parametrize("function", WRITTEN, ids=lambda function: function.__name__)
def test_numbers_are_written_for_people(function: Callable[..., str]):
    assert {numbers: function(*numbers) for numbers in WRITTEN[function]} == WRITTEN[function]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("512B", 512), ("25165824", 24 * MIB), ("24MiB", 24 * MIB), ("24 mib", 24 * MIB),
        ("1.5g", 3 * GIB // 2), (" 6GiB ", 6 * GIB),
    ],
)  # fmt: skip
def test_sizes_are_read_as_users_type_them(text: str, expected: int):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-1", "3XB", "6GB", "1e9", "1..5g", "٣"])
def test_what_is_no_size_is_refused_with_its_text(text: str):
    with refused(repr(text), "bytes", "24MiB", error=ValueError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("500MB", 5 * 10**8), (" 5 GB ", 5 * 10**9), ("2GiB", 2 * GIB), ("3MiB", 3 * MIB)]
)
def test_sizes_of_files_have_a_unit_that_decides_between_1000_and_1024(text: str, expected: int):
    assert parse_file_size(text) == expected


@pytest.mark.parametrize("text", ["", "5", "GB", "0GB", "5gb", "5TB", "1.5GB", "-1GB", "٣GB", "1" * 16 + "GB"])
def test_what_is_no_size_of_a_file_is_refused_with_its_text_and_the_units(text: str):
    with refused(repr(text), "MB", "GiB", error=ValueError):
        parse_file_size(text)


def test_no_text_leaves_the_plural_to_the_reader():
    """Neither `row(s)` nor an `s` added by hand: `plural` does it."""
    by_hand = re.compile(r"\b[a-z]+\(e?s\)|['\"]s['\"] (?:if|\*) ")
    package = Path(__file__).parents[2] / "jaxpar"
    assert [str(file) for file in package.rglob("*.py") if by_hand.search(file.read_text(encoding="utf-8"))] == []
