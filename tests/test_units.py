"""Numbers are written with few digits, in a unit that suits them, and never with an exponent."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from jaxpar.units import (
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


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (size(0), "0 B"),
        (size(512), "512 B"),
        (size(1536), "1.5 KiB"),
        (size(-3 * MIB), "-3.0 MiB"),
        (size(51.6 * GIB), "51.6 GiB"),
        (size(1000 * MIB), "1000.0 MiB"),
        (size(Fraction(3 * GIB, 2)), "1.5 GiB"),
        (size(47.734 * GIB, 2), "47.73 GiB"),
        (size(2**50), "1024.0 TiB"),
        (seconds(0), "0"),
        (seconds(1.236), "1.24 s"),
        (seconds(0.0351), "35.1 ms"),
        (seconds(4.1e-6), "4.10 us"),
        (seconds(39.86), "39.9 s"),
        (seconds(39860), "39,860 s"),
        (seconds(99.97), "100 s"),  # neither 99.97 nor 100.0
        (seconds(0.9997), "1.00 s"),
        (seconds(0.000123), "123 us"),
        (seconds(3e-11), "0.0300 ns"),
        (seconds(-0.25), "-250 ms"),
        (clock(75), "1:15"),
        (clock(7650), "2:07:30"),
        (clock(3 * 86400 + 4 * 3600), "3d 04:00"),
        (count(950), "950"),
        (count(1234), "1.23k"),
        (count(12345), "12.3k"),
        (count(999_960), "1.00M"),
        (count(8_030_261_248), "8.03B"),
        (count(70.55e9), "70.5B"),
        (count(405e9), "405B"),
        (count(15e12), "15.0T"),
        (operations(3.94e15), "3.94 PFLOP"),
        (operations(500), "500 FLOP"),
        (plain(5.33249), "5.332"),
        (plain(0.0125), "0.0125"),
        (plain(39860.2), "39,860"),
        (plain(1234.5, 3), "1,234"),
        (plain(float("inf")), "inf"),
        (three_digits(2.1), "2.10"),
        (three_digits(9.996), "10.0"),
        (three_digits(99.97), "100"),
        (three_digits(1234.5), "1,234"),
        (three_digits(0.01234), "0.0123"),
        (three_digits(0.00001), "0.0000100"),
        (three_digits(0), "0.00"),
        (three_digits(float("inf")), "inf"),
        (rate(450e9), "450 GB/s"),
        (rate(25e9), "25 GB/s"),
        (rate(3.35e12), "3.35 TB/s"),
        (rate(12.5e6), "12.5 MB/s"),
        (percent(0.1234), "12.3%"),
        (percent(1, 8), "12.5%"),
        (percent(0, 0), "0.0%"),
        (percent(Fraction(3, 8)), "37.5%"),
        (percent(0.004567, digits=2), "0.46%"),
    ],
)
def test_numbers_are_written_for_people(written: str, expected: str):
    assert written == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("512B", 512),
        ("25165824", 24 * MIB),
        ("24MiB", 24 * MIB),
        ("24 mib", 24 * MIB),
        ("1.5g", 3 * GIB // 2),
        (" 6GiB ", 6 * GIB),
    ],
)
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


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [
        (0, "row", "0 rows"), (1, "row", "1 row"), (2, "batch", "2 batches"), (12_345, "document", "12,345 documents"),
        (1, "entry", "1 entry"), (3, "entry", "3 entries"), (2, "process", "2 processes"), (2, "array", "2 arrays"),
    ],
)  # fmt: skip
def test_a_number_of_things(number: int, noun: str, expected: str):
    assert plural(number, noun) == expected


def test_no_text_leaves_the_plural_to_the_reader():
    """Neither `row(s)` nor an `s` added by hand: `plural` does it."""
    by_hand = re.compile(r"\b[a-z]+\(e?s\)|['\"]s['\"] (?:if|\*) ")
    package = Path(__file__).parents[1] / "jaxpar"
    assert [str(file) for file in package.rglob("*.py") if by_hand.search(file.read_text(encoding="utf-8"))] == []
