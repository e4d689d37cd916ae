"""Buffer assignment and lifetimes as XLA writes them; memory over the schedule; what lies at the peak."""

from __future__ import annotations

import pytest

from jaxpar.compiler.program.hlo.records import HOST_MEMORY, ProgramError
from jaxpar.compiler.program.memory.buffers import Buffers, parse_buffers
from jaxpar.compiler.program.memory.timeline import occupants, peak, timeline
from tests.compiler.program.programs import TINY, buffers, memory

ASSIGNMENT = """BufferAssignment:
allocation 0: size 100, page 0, parameter 3, shape |f32[25]| at ShapeIndex {}, maybe-live-out:
 value: <1 in @0> (size=100,offset=0): f32[25]{0}
 value: <2 out @0> (size=100,offset=0): f32[25]{0}
allocation 1: size 20, page 0, parameter 4, shape |f32[5]| at ShapeIndex {1}:
 value: <3 batch @0> (size=20,offset=0): f32[5]{0}
allocation 2: size 16, page 0, output shape is |(f32[25], f32[5])|, maybe-live-out:
 value: <4 result{} @0> (size=16,offset=0): (f32[25]{0}, f32[5]{0})
allocation 3: size 4, page 0, constant:
 value: <5 zero @0> (size=4,offset=0): f32[]
allocation 4: size 4, page 0, thread-local:
 value: <6 scalar @0> (size=4,offset=0): f32[]
allocation 5: size 300, page 0, preallocated-temp:
 value: <7 a @0> (size=100,offset=0): f32[25]{0}
 value: <8 b{0} @0> (size=60,offset=100): f32[15]{0}
 value: <9 loop{1} (phi) @0> (size=100,offset=0): f32[25]{0}
 value: <10 c @0> (size=200,offset=100): f32[50]{0}
 value: <11 d @0> (size=40,offset=260): f32[10]{0}
allocation 6: size 48, color 1, page 0, preallocated-temp:
 value: <13 sent @1> (size=48,offset=0): f32[12]{0:S(1)}
 value: <14 e{1} @0> (size=20,offset=8): f32[5]{0}
 reused by buffers of a different color:
  value: <14 e{1} @0> (color=0)
allocation 7: size 64, color 5, page 0, preallocated-temp:
 value: <12 kept @5> (size=64,offset=0): f32[16]{0:S(5)}

"""
LIVE = """HloLiveRange (max 6):
  InstructionSequence:
    0:in
    1:a
    2:b
    3:loop
    4:c
    5:d
    6:result
  BufferLiveRange:
    in{}:0-6
    out{}:5-6
    batch{}:0-6
    result{}:6-6
    zero{}:0-6
    a{}:1-4
    b{0}:2-3
    loop{1}:3-5
    c{}:4-5
    d{}:5-6
    sent{}:2-3
    e{1}:5-5
    kept{}:2-4
  Live ranges at 4 (peak):
    a{}: 100 bytes (cumulative: 100 bytes)
  Stack trace breakdown for peak usage: 100 bytes
    main (100.0%, total: 100 bytes)
      +-- a (100.0%, total: 100 bytes)
"""
HELD = 100 + 20 + 16 + 4 + 4
"""All but the shared allocation."""


@pytest.fixture(scope="module")
def small() -> Buffers:
    return parse_buffers(ASSIGNMENT, LIVE)


def test_allocations_have_their_kind(small: Buffers):
    assert [a.kind for a in small.allocations] == [
        "parameter", "parameter", "output", "constant", "thread-local", "temporary", "temporary", "temporary",
    ]  # fmt: skip
    assert [(a.parameter, a.donated) for a in small.allocations[:3]] == [(3, True), (4, False), (None, False)]
    assert [a.memory_space for a in small.allocations] == [0] * 6 + [1, HOST_MEMORY]


def test_a_value_has_its_place_and_its_time(small: Buffers):
    value = small.allocations[5].values[2]
    assert (value.op, value.path, value.offset, value.end, value.first_live, value.last_live) == (
        "loop",
        (1,),
        0,
        100,
        3,
        5,
    )
    assert small.order[value.first_live] == "loop"


def test_totals_are_sums_of_allocations(small: Buffers):
    assert (small.total(), small.beside, small.total(host=True)) == (HELD + 300 + 48, 48, 64)


def test_bytes_that_values_share_count_once(small: Buffers):
    # a and its view through the loop are the same bytes; c and d share 40.
    assert timeline(small).tolist() == [HELD + live for live in (0, 100, 160 + 48, 160 + 48, 300, 300 + 20, 40)]
    assert peak(small) == (5, HELD + 320)


def test_occupants_share_out_every_live_byte(small: Buffers):
    for place, live in enumerate(timeline(small)):
        assert sum(occupant.bytes for occupant in occupants(small, place)) == live
    found = occupants(small, 5)
    assert [(o.value.op, o.bytes) for o in found if o.allocation.kind == "temporary"] == [
        ("c", 200),
        ("loop", 100),
        ("e", 20),
    ]
    at_4 = {o.value.op: [v.op for v in o.shared_with] for o in occupants(small, 4)}
    assert at_4["a"] == ["loop"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("BufferAssignment:", "Buffers:", "not a buffer assignment"),
        (", constant:", ", constant, on fire:", "allocation is not understood"),
        ("allocation 3:", "reservation 3:", "line is not understood"),
        ("  value: <14 e{1} @0> (color=0)", "  value: <14 f @0> (color=0)", "line is not understood"),
        ("(size=60,", "(length=60,", "value is not understood"),
        (
            "allocation 0: size 100, page 0, parameter 3, shape |f32[25]| at ShapeIndex {}, maybe-live-out:\n",
            "",
            "before",
        ),
    ],
)
def test_other_assignments_are_refused(old: str, new: str, problem: str):
    assert old in ASSIGNMENT
    with pytest.raises(ProgramError, match=problem):
        parse_buffers(ASSIGNMENT.replace(old, new), LIVE)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("    3:loop", "    9:loop", "place in the order"),
        ("    b{0}:2-3", "    b{0}: from 2 to 3", "live range is not understood"),
        ("  Live ranges at 4 (peak):", "  Moon phases:", "section of the live ranges is not known"),
        (LIVE, "HloLiveRange (max 6):\n", "name no order"),
    ],
)
def test_other_live_ranges_are_refused(old: str, new: str, problem: str):
    with pytest.raises(ProgramError, match=problem):
        parse_buffers(ASSIGNMENT, LIVE.replace(old, new))


@pytest.mark.parametrize("name", TINY)
def test_totals_and_peaks_are_those_of_the_compiler(name: str):
    stats = memory(name)
    place, most = peak(buffers(name))
    # JAX 0.12 leaves scalars of reductions out of its total; XLA's peak leaves out some tables of tuples.
    assert 0 <= buffers(name).total() - stats["total_allocation_bytes"] <= 1024
    assert abs(most - stats["peak_memory_in_bytes"]) <= 2048
    assert sum(occupant.bytes for occupant in occupants(buffers(name), place)) == most


@pytest.mark.parametrize("name", TINY)
def test_offloaded_memory_is_the_hosts(name: str):
    assert buffers(name).total(host=True) == memory(name)["host_temp_size_in_bytes"] > 0
