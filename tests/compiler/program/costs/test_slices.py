"""Bytes read and written: the slice of a buffer that is only sliced, the whole of what is used whole."""

import pytest

from jaxpar.compiler.program.costs.slices import Slices
from jaxpar.compiler.program.hlo.records import Module
from tests.compiler.program.programs import computation, module, only

BIG, ROW = "f32[8,100]{1,0}", "f32[1,100]{1,0}"
BIG_BYTES, ROW_BYTES = 3200, 400
HEAD = f"%big = {BIG} parameter(0)\n%row = {ROW} parameter(1)\n%i = s32[] parameter(2)"


def traffic(made: Module, opcode: str) -> tuple[list[int], int]:
    op = only(made, opcode)
    return Slices(made).reads(op), Slices(made).writes(op)


def fusion(body: str, shape: str, operands: str = "%big, %row, %i") -> Module:
    inside = f"%a = {BIG} parameter(0)\n%b = {ROW} parameter(1)\n%n = s32[] parameter(2)\n{body}"
    line = f"%x = {shape} fusion({operands}), kind=kLoop, calls=%fused"
    return module(f"{HEAD}\n{line}", computation("fused", inside))


@pytest.mark.parametrize(
    ("line", "opcode", "reads", "writes"),
    [
        (f"%x = {BIG} add(%big, %big)", "add", [BIG_BYTES, BIG_BYTES], BIG_BYTES),
        (f"%x = {ROW} dynamic-slice(%big, %i, %i)", "dynamic-slice", [ROW_BYTES, 4, 4], ROW_BYTES),
        (f"%x = {BIG} dynamic-update-slice(%big, %row, %i)", "dynamic-update-slice", [0, ROW_BYTES, 4], ROW_BYTES),
        (f"%x = {ROW} slice(%big), slice={{[0:1], [0:100]}}", "slice", [ROW_BYTES], ROW_BYTES),
        (f"%x = {BIG} scatter(%big, %i, %row)", "scatter", [ROW_BYTES, 4, ROW_BYTES], ROW_BYTES),
        (f"%x = {BIG} copy(%big)", "copy", [BIG_BYTES], BIG_BYTES),
    ],
)  # fmt: skip
def test_ops_of_their_own(line: str, opcode: str, reads: list[int], writes: int):
    assert traffic(module(f"{HEAD}\n{line}"), opcode) == (reads, writes)


def test_a_fusion_that_slices_reads_the_slice():
    made = fusion(f"%s = {ROW} dynamic-slice(%a, %n, %n)\n%t = {ROW} add(%s, %b)", ROW)
    assert traffic(made, "fusion") == ([ROW_BYTES, ROW_BYTES, 8 // 2], ROW_BYTES)


def test_a_fusion_that_uses_a_buffer_both_ways_reads_all_of_it_once():
    body = f"%s = {ROW} dynamic-slice(%a, %n, %n)\n%m = {BIG} negate(%a)\n%t = ({ROW}, {BIG}) tuple(%s, %m)"
    assert traffic(fusion(body, f"({ROW}, {BIG})"), "fusion") == ([BIG_BYTES, 0, 4], ROW_BYTES + BIG_BYTES)


def test_a_fusion_that_writes_a_row_into_a_stack_moves_the_row():
    body = f"%m = {ROW} negate(%b)\n%t = {BIG} dynamic-update-slice(%a, %m, %n, %n)"
    assert traffic(fusion(body, BIG), "fusion") == ([0, ROW_BYTES, 4], ROW_BYTES)


def test_the_scratch_memory_of_a_library_call_is_not_traffic():
    line = f'%x = ({BIG}, s8[33554432]{{0}}) custom-call(%big, %row), custom_call_target="__cublas$lt$matmul"'
    assert traffic(module(f"{HEAD}\n{line}"), "custom-call") == ([BIG_BYTES, ROW_BYTES], BIG_BYTES)
