"""Buffer assignment and lifetimes as XLA writes them; memory over the schedule; what lies at the peak."""

import pytest

from jaxpar.compiler.program.hlo.records import Module, ProgramError
from jaxpar.compiler.program.memory.buffers import occupants, parse_buffers, peak, timeline
from jaxpar.compiler.program.memory.provenance import Provenance
from tests.compiler.program.programs import TINY, buffers, compiled, computation, memory, module, text


@pytest.mark.parametrize("name", TINY)
def test_totals_and_peaks_are_those_of_the_compiler(name: str):
    stats = memory(name)
    place, most = peak(buffers(name))
    # JAX 0.12 leaves scalars of reductions out of its total; XLA's peak leaves out some tables of tuples.
    total = lambda host: sum(one.size for one in buffers(name).allocations if one.on_host == host)
    assert 0 <= total(False) - stats["total_allocation_bytes"] <= 1024
    assert abs(most - stats["peak_memory_in_bytes"]) <= 2048
    assert most == timeline(buffers(name))[place] == timeline(buffers(name)).max()
    assert total(True) == stats["host_temp_size_in_bytes"] > 0


@pytest.mark.parametrize("name", TINY)
def test_occupants_share_out_every_live_byte(name: str):
    for place, live in enumerate(timeline(buffers(name))):
        assert sum(occupant.bytes for occupant in occupants(buffers(name), place)) == live


SMALL = """BufferAssignment:
allocation 0: size 100, page 0, parameter 3, shape |f32[25]| at ShapeIndex {}, maybe-live-out:
 value: <1 in @0> (size=100,offset=0): f32[25]{0}
allocation 5: size 300, page 0, preallocated-temp:
 value: <7 a @0> (size=100,offset=0): f32[25]{0}
 value: <9 loop{1} (phi) @0> (size=100,offset=0): f32[25]{0}
 value: <10 c @0> (size=200,offset=100): f32[50]{0}
 value: <11 d @0> (size=40,offset=260): f32[10]{0}
allocation 6: size 48, color 1, page 0, preallocated-temp:
 value: <14 e{1} @0> (size=20,offset=8): f32[5]{0}
 reused by buffers of a different color:
  value: <14 e{1} @0> (color=0)

"""
LIVE = """HloLiveRange (max 6):
  InstructionSequence:
    0:in
    1:a
    2:b
    3:loop
    4:c
    5:d
  BufferLiveRange:
    in{}:0-5
    a{}:1-4
    loop{1}:3-5
    c{}:4-5
    d{}:5-5
    e{1}:5-5
"""


def test_bytes_that_values_share_count_once():
    """a and its view through the loop are the same bytes; c and d share 40."""
    small = parse_buffers(SMALL, LIVE)
    assert small.beside == 48
    assert timeline(small).tolist() == [100 + live for live in (0, 100, 100, 100, 300, 300 + 20)]
    assert {o.value.op: [v.op for v in o.shared_with] for o in occupants(small, 4)}["a"] == ["loop"]


@pytest.mark.parametrize(
    ("part", "old", "new", "problem"),
    [
        ("buffers", "BufferAssignment:", "Buffers:", "not a buffer assignment"),
        ("buffers", "\nallocation 3:", "\nreservation 3:", "line is not understood"),
        ("buffers", "(size=", "(length=", "value is not understood"),
        ("buffers", "\nallocation ", "\n value: <1 a @0> (size=4,offset=0): f32[]\nallocation ", "before the first"),
        ("live", "    1:", "    9:", "place in the order"),
        ("live", "  BufferLiveRange:", "  Moon phases:", "section of the live ranges is not known"),
    ],
)
def test_other_forms_are_refused(part: str, old: str, new: str, problem: str):
    texts = {name: text(TINY[0], name) for name in ("buffers", "live")}
    assert old in texts[part]
    texts[part] = texts[part].replace(old, new, 1)
    with pytest.raises(ProgramError, match=problem):
        parse_buffers(texts["buffers"], texts["live"])
    with pytest.raises(ProgramError, match="no order or no value"):
        parse_buffers(SMALL, "")


ROW, STACK = "f32[1,4]{1,0}", "f32[8,4]{1,0}"
STATE = f"(s32[], {STACK}, {ROW})"


def stacking_loop() -> Module:
    """A loop that writes a row into a stack in each iteration; the row comes from a multiplication."""
    body = f"""%s = {STATE} parameter(0)
        %i = s32[] get-tuple-element(%s), index=0
        %stack = {STACK} get-tuple-element(%s), index=1
        %row = {ROW} get-tuple-element(%s), index=2
        %made = {ROW} multiply(%row, %row)
        %put = {STACK} fusion(%stack, %made, %i), kind=kLoop, calls=%write
        %next = {STATE} tuple(%i, %put, %row)"""
    write = f"""%p0 = {STACK} parameter(0)
        %p1 = {ROW} parameter(1)
        %p2 = s32[] parameter(2)
        %turned = {ROW} bitcast(%p1)
        %u = {STACK} dynamic-update-slice(%p0, %turned, %p2, %p2)"""
    entry = f"""%zero = s32[] constant(0)
        %empty = {STACK} constant({{...}})
        %given = {ROW} parameter(0)
        %square = {ROW} exponential(%given)
        %copied = {ROW} copy(%square)
        %start = {STATE} tuple(%zero, %empty, %copied)
        %w = {STATE} while(%start), condition=%c, body=%b, backend_config={{"known_trip_count":{{"n":"8"}}}}
        %out = {STACK} get-tuple-element(%w), index=1"""
    check = f"%cs = {STATE} parameter(0)\n%go = pred[] constant(true)"
    return module(entry, computation("write", write), computation("b", body), computation("c", check))


@pytest.mark.parametrize(
    ("name", "path", "maker"),
    [
        ("w", (1,), "made"),  # a stack: what made its rows
        ("out", (), "made"),
        ("put", (), "made"),
        ("s", (1,), "made"),  # the same buffer, as the body sees it
        ("w", (2,), "square"),  # carried round unchanged: what it started with
        ("s", (2,), "square"),
        ("copied", (), "square"),
        ("given", (), "given"),
        ("gone", (), None),
    ],
)
def test_buffers_are_traced_to_what_computed_them(name: str, path: tuple[int, ...], maker: str | None):
    found = Provenance(stacking_loop()).producer(name, path)
    assert (found and found.name) == maker


@pytest.mark.parametrize("name", TINY)
def test_every_buffer_of_a_compiled_step_has_a_maker(name: str):
    makers = Provenance(compiled(name), buffers(name).order)
    values = [value for allocation in buffers(name).allocations for value in allocation.values]
    assert values
    assert all(makers.producer(value.op, value.path) is not None for value in values)
