"""HLO text becomes records; what is not known is an error that shows the line."""

import re
from pathlib import Path

import pytest

from jaxpar.compiler.program.hlo.parser import parse
from jaxpar.compiler.program.hlo.records import HOST_MEMORY, ArrayShape, Frame, ProgramError, leaves, shape_bytes
from tests.compiler.program.programs import FIXTURES, TINY, compiled, module, module_text, only

TABLES = """FileNames
1 "jaxpar/layers/layer.py"
2 "jaxpar/mesh/collectives.py"

FunctionNames
1 "Layer.__call__"
2 "gather_sequence"

FileLocations
1 {file_name_id=1 function_name_id=1 line=41 end_line=41 column=8 end_column=20}
2 {file_name_id=2 function_name_id=2 line=27 end_line=27 column=15 end_column=70}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=1 parent_frame_id=3}

"""


def test_an_op_has_its_parts():
    line = (
        '%x = bf16[2,3]{1,0} add(%a, %b), metadata={op_name="jit(f)/add \\"quoted\\"" stack_frame_id=2}, '
        'backend_config={"a":{"b":"1,2}"}}'
    )
    op = only(
        module(f"%a = bf16[2,3]{{1,0}} parameter(0)\n%b = bf16[2,3]{{1,0}} parameter(1)\n{line}", tables=TABLES), "add"
    )
    assert (op.name, [operand.name for operand in op.operands]) == ("x", ["a", "b"])
    assert op.shape == ArrayShape("bf16", (2, 3), 0, 16) and op.op_name == 'jit(f)/add "quoted"'
    assert op.config == {"a": {"b": "1,2}"}}


def test_a_stack_of_frames_is_innermost_first_and_names_each_line_once():
    lines = '%a = f32[] parameter(0)\n%x = f32[] add(%a, %a), metadata={op_name="f" stack_frame_id=3}'
    op = only(module(lines, tables=TABLES), "add")
    layer, collective = (
        Frame("Layer.__call__", "jaxpar/layers/layer.py", 41),
        Frame("gather_sequence", "jaxpar/mesh/collectives.py", 27),
    )
    assert op.frames == (layer, collective) and op.source == layer


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f8e4m3fn[16]{0}", 16), ("s4[15]{0:E(4)}", 8), ("c64[2,2]{1,0}", 32), ("token[]", 0), ("f32[]", 4),
        ("bf16[0,7]{1,0}", 0), ("u8[3]", 3), ("((f32[2]{0}, s32[]), /*index=5*/pred[4]{0})", 16),
    ],
)  # fmt: skip
def test_bytes_of_shapes(shape: str, size: int):
    assert shape_bytes(only(module(f"%a = {shape} parameter(0)"), "parameter").shape) == size


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("%x = f32[<=2]{0} negate(%a)", "not a shape"),
        ("%x = f32[] negate(%b)", "operand %b is not defined"),
        ('%x = f32[] negate(%a), metadata={op_name="f" stack_frame_id=9}', "stack frame 9 is not in the table"),
        ("%x = f32[] fusion(%a), kind=kLoop, calls=%gone", "x calls gone, which is not in the module"),
        ("%x = f32[] negate(%a", "a bracket is not closed"),
        ("surprise", "not an instruction"),
    ],
)
def test_what_is_not_known_is_an_error_that_shows_the_line(line: str, problem: str):
    with pytest.raises(ProgramError, match=problem) as error:
        module(f"%a = f32[] parameter(0)\n{line}")
    assert "line 6" in str(error.value) or "calls" in problem


@pytest.mark.parametrize("call", ["frobnicate(%a)", "frobnicate-done(7)"])
def test_an_operation_that_is_not_known_is_a_note(call: str):
    (note,) = parse(module_text(f"%a = f32[] parameter(0)\n%x = f32[] {call}", tables=TABLES)).unknown.notes()
    assert note.endswith(f"counts as memory traffic: {call.partition('(')[0]}")


def test_every_test_of_a_program_asks_whether_all_of_it_is_known():
    for file in Path(__file__).parents[3].rglob("*.py"):
        source = file.read_text()
        if "compiler.program.hlo.parser import" in source or re.search(r"\bAnalysis\([a-z]", source):
            assert "report_of(" in source or "unknown.notes()" in source, file


def test_attributes_types_and_layouts_that_are_not_known_hide_nothing_beside_them():
    line = "%x = f7[16]{0:T(8)S(5)} negate(%a), metadata={flavour={3} stack_frame_id=3}, colour=blue"
    op = only(parse(module_text(f"%a = f32[] parameter(0)\n{line}", tables=TABLES)), "negate")
    assert (shape_bytes(op.shape), next(leaves(op.shape)).memory_space) == (16 * 7 // 8, HOST_MEMORY)
    assert op.operands[0].name == "a" and op.source == Frame("Layer.__call__", "jaxpar/layers/layer.py", 41)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("num_partitions=1", "num_partitions=1, replica_count=2", "replica_count"),
        ("HloModule", "Module", "not an HLO module"),
        ("  ROOT ", "  ", "has no root"),
        ("}", "", "ends before the entry"),
    ],
)
def test_a_module_of_another_form_is_refused(old: str, new: str, problem: str):
    with pytest.raises(ProgramError, match=problem):
        parse(module_text("%a = f32[] parameter(0)").replace(old, new))


@pytest.mark.parametrize("name", TINY)
def test_the_source_line_of_a_collective_is_the_one_that_asked_for_it(name: str):
    lines = (FIXTURES.parent / "tiny_step.py").read_text().splitlines()
    asked = {"gather_sequence/all_gather": "lax.all_gather(x", "jvp()/ppermute": "lax.ppermute("}
    for scope, call in asked.items():
        ops = [op for op in compiled(name).entry_computation.ops if op.op_name.endswith(scope)]
        ops += [op for c in compiled(name).computations.values() for op in c.ops if op.op_name.endswith(scope)]
        assert ops
        for op in ops:
            assert op.source is not None and op.source.file == "tests/compiler/program/tiny_step.py"
            assert call in lines[op.source.line - 1]
