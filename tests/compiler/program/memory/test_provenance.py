"""The op that computed what lies in a buffer, found back through loops and copies."""

import pytest

from jaxpar.compiler.program.hlo.records import Module
from jaxpar.compiler.program.memory.provenance import Provenance
from tests.compiler.program.programs import TINY, buffers, compiled, computation, module

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
    found = Provenance(stacking_loop()).maker(name, path)
    assert (found and found.name) == maker


@pytest.mark.parametrize("name", TINY)
def test_every_buffer_of_a_compiled_step_has_a_maker(name: str):
    makers = Provenance(compiled(name), buffers(name).order)
    values = [value for allocation in buffers(name).allocations for value in allocation.values]
    assert values
    assert all(makers.maker(value.op, value.path) is not None for value in values)
