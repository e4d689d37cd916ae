"""What there is of the host's memory, and what XLA pins of it."""

from __future__ import annotations

from jaxpar.hardware.host import PINNED_VARIABLE, PREALLOCATED_VARIABLE, pinned_limit

GIB = 2**30


def test_a_process_pins_64_gib_where_nobody_says_otherwise():
    assert pinned_limit({}) == 64 * GIB
    assert pinned_limit({PREALLOCATED_VARIABLE: "false"}) == 64 * GIB
    assert pinned_limit({PREALLOCATED_VARIABLE: "True"}) == 16 * GIB
    assert pinned_limit({PINNED_VARIABLE: "900"}) == pinned_limit({PINNED_VARIABLE: " 900 "}) == 900 * GIB
