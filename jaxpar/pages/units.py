"""Units, numbers written for people, and amounts that a user types.

JSON has plain numbers: bytes, seconds, counts and fractions of 1. The functions here write them on screens, pages and
in messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KILO, MEGA, GIGA, TERA, PETA, EXA = 1e3, 1e6, 1e9, 1e12, 1e15, 1e18
MILLI, MICRO, NANO = 1e-3, 1e-6, 1e-9

type Number = float | Fraction
type Units = Sequence[tuple[str, float]]

_BYTES: Units = ((" TiB", TIB), (" GiB", GIB), (" MiB", MIB), (" KiB", KIB))
_SECONDS: Units = ((" s", 1.0), (" ms", MILLI), (" us", MICRO), (" ns", NANO))
_COUNTS: Units = (("T", TERA), ("B", GIGA), ("M", MEGA), ("k", KILO), ("", 1))
_OPERATIONS: Units = (
    (" EFLOP", EXA), (" PFLOP", PETA), (" TFLOP", TERA), (" GFLOP", GIGA), (" MFLOP", MEGA), (" FLOP", 1)
)  # fmt: skip
_RATES: Units = ((" TB/s", TERA), (" GB/s", GIGA), (" MB/s", MEGA), (" kB/s", KILO), (" B/s", 1))
_FILE_BYTES = {"MB": 10**6, "GB": 10**9, "MiB": MIB, "GiB": GIB}
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def size(count: Number, digits: int = 1) -> str:
    """Bytes in binary units, with as many `digits` after the point: `51.6 GiB`, `812.5 MiB`, `512 B`.

    Two digits suit two sizes that a message compares: `47.73 GiB, and there are 47.68 GiB`.
    """
    for unit, factor in _BYTES:
        if abs(count) >= factor:
            return f"{float(count) / factor:.{digits}f}{unit}"
    return f"{float(count):.0f} B"


def seconds(time: Number) -> str:
    """`1.24 s`, `35.2 ms`, `4.10 us`, `39,860 s`; `0` for no time."""
    return _with_unit(float(time), _SECONDS) if time else "0"


def clock(time: Number) -> str:
    """A long time: `1:15`, `2:07:30`, `3d 04:00`."""
    minutes, second = divmod(round(time), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def count(number: Number) -> str:
    """Parameters, tokens, tokens per second: `70.6B`, `1.24M`, `12.3k`, `950`."""
    if abs(number) < KILO:
        return f"{float(number):.0f}"
    return _with_unit(float(number), _COUNTS)


def plural(number: int, noun: str, nouns: str | None = None) -> str:
    """A number of things: `1 row`, `2 rows`, `1,024 batches`, `0 queries`.

    Args:
        number: how many.
        noun: the name of one.
        nouns: the name of several, where it is not made by the rules of English.
    """
    if number == 1:
        return f"1 {noun}"
    if nouns is None:
        y_last = noun.endswith("y") and noun[-2:-1] not in tuple("aeiou")
        nouns = f"{noun[:-1]}ies" if y_last else noun + ("es" if noun.endswith(("s", "x", "sh", "ch")) else "s")
    return f"{number:,} {nouns}"


def operations(number: Number) -> str:
    """Floating-point operations: `3.94 PFLOP`. A rate is `operations(...)` and `/s`."""
    return _with_unit(float(number), _OPERATIONS)


def plain(value: float, digits: int = 4) -> str:
    """A number without a unit, such as a loss or a ratio: `5.332`, `0.0125`, `39,860`."""
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text else text


def three_digits(number: float) -> str:
    """A number without a unit, to three digits and never with an exponent: `1,234`, `39.9`, `2.10`, `0.0123`."""
    exponent = f"{number:.2e}".partition("e")[2]  # none of infinity
    return f"{number:,.{max(0, 2 - int(exponent or 2))}f}"


def rate(speed: Number) -> str:
    """Bytes per second in decimal units, as datasheets give them: `3.35 TB/s`, `450 GB/s`, `12.5 MB/s`."""
    return re.sub(r"\.?0+(?= )", "", text) if "." in (text := _with_unit(float(speed), _RATES)) else text


def percent(part: Number, whole: Number = 1, digits: int = 1) -> str:
    """A fraction: `percent(0.123)` and `percent(1, 8)` are `12.3%` and `12.5%`; 0 of 0 is `0.0%`."""
    return f"{100 * float(part) / float(whole) if whole else 0.0:.{digits}f}%"


def parse_size(text: str) -> int:
    """Bytes as a user types them: `25165824`, `24MiB`, `1.5g`. Units are powers of 1024; `MB` would be ambiguous.

    Raises:
        ValueError: it is not a size; states what was expected.
    """
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*(?:([kmgt])(?:ib)?|b)?", text.strip().lower(), re.ASCII)
    if not match:
        raise ValueError(f"expected bytes, as in 25165824, 24MiB or 6GiB, got {text[:40]!r}")
    return int(Fraction(match[1]) * 2 ** _POWERS[match[2] or ""])


def parse_file_size(text: str) -> int:
    """Bytes of a file as a user types them: `500MB`, `5GB`, `2GiB`; the unit decides between 1000 and 1024.

    Raises:
        ValueError: it is no such size, or 0; states what was expected.
    """
    match = re.fullmatch(r"(\d{1,15})\s*([A-Za-z]+)", text.strip(), re.ASCII)
    if not match or match[2] not in _FILE_BYTES or not int(match[1]):
        raise ValueError(f"expected a whole number and a unit, one of {', '.join(_FILE_BYTES)}, got {text[:40]!r}")
    return int(match[1]) * _FILE_BYTES[match[2]]


def _with_unit(number: float, units: Units) -> str:
    """Three digits, in the largest unit of which there is one when rounded, or in the smallest."""
    unit, factor = next((one for one in units if float(f"{abs(number) / one[1]:.3g}") >= 1), units[-1])
    return three_digits(number / factor) + unit
