"""Readable numbers: bytes, seconds, floating-point operations, counts."""

from __future__ import annotations

GIB, MIB = 2**30, 2**20


def size(count: float) -> str:
    """Bytes in binary units: `51.6 GiB`."""
    for unit, bytes_of in (("TiB", 2**40), ("GiB", GIB), ("MiB", MIB), ("KiB", 2**10)):
        if abs(count) >= bytes_of:
            return f"{count / bytes_of:.1f} {unit}"
    return f"{count:.0f} B"


def mebibytes(count: int) -> str:
    """Bytes of a device's memory: `51.60 GiB`, `812.5 MiB`."""
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / MIB:.1f} MiB"


def seconds(time: float) -> str:
    """`1.24 s`, `35.2 ms`, `4.1 us`."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if abs(time) >= factor:
            return _three(time / factor, unit)
    return f"{time * 1e9:.1f} ns" if time else "0"


def operations(count: float) -> str:
    """`3.94 PFLOP`."""
    for unit, factor in (("EFLOP", 1e18), ("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if count >= factor:
            return _three(count / factor, unit)
    return f"{count:.0f} FLOP"


def _three(number: float, unit: str) -> str:
    """Three digits and a unit, without an exponent."""
    return f"{number:,.0f} {unit}" if abs(number) >= 100 else f"{number:#.3g} {unit}"


def share(part: float, whole: float) -> str:
    """`12.3%`; 0 of 0 is 0%."""
    return f"{100 * part / whole:.1f}%" if whole else "0.0%"


def words(name: str) -> str:
    """`saved_activations` with spaces."""
    return name.replace("_", " ")
