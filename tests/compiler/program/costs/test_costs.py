"""FLOPs, kinds and recomputation of ops."""

import json

import pytest

from jaxpar.compiler.program.costs.ops import Cost, costs, flops_by_kind, recomputed_flops
from jaxpar.compiler.program.costs.slices import Slices
from jaxpar.compiler.program.hlo.parser import parse
from jaxpar.compiler.program.hlo.records import Module
from jaxpar.compiler.program.loops import executions
from tests.compiler.program.programs import TINY, compiled, computation, module, module_text, only
from tests.compiler.program.tiny_step import BATCH, EMBED, HIDDEN, LAYERS, SEQUENCE

AB = "%a = bf16[2,64,32]{2,1,0} parameter(0)\n%b = bf16[2,32,16]{2,1,0} parameter(1)"
DOT = "dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"
AB_FLOPS = 2 * (2 * 64 * 16) * 32


def all_of(made: Module) -> list[Cost]:
    found = costs(made, executions(made))
    assert not made.unknown.notes()
    return found


def one(lines: str, *others: str) -> Cost:
    (found,) = all_of(module(lines, *others))
    return found


def test_a_dot_multiplies_and_adds_along_what_it_contracts():
    cost = one(f"{AB}\n%x = bf16[2,64,16]{{2,1,0}} {DOT}")
    assert (cost.kind, cost.flops, cost.arithmetic, cost.vector_flops) == ("matmul", AB_FLOPS, "bfloat16", 0)
    assert (cost.read_bytes, cost.written_bytes) == (2 * (2 * 64 * 32 + 2 * 32 * 16), 2 * 2 * 64 * 16)


@pytest.mark.parametrize(
    ("target", "output"),
    [("__cublas$gemm", "(bf16[2,64,16]{2,1,0}, s8[4096]{0})"), ("__cublas$lt$matmul", "bf16[2,64,16]{2,1,0}")],
)
def test_calls_of_cublas_state_what_they_contract(target: str, output: str):
    dims = {
        "lhs_contracting_dimensions": ["2"], "rhs_contracting_dimensions": ["1"],
        "lhs_batch_dimensions": ["0"], "rhs_batch_dimensions": ["0"],
    }  # fmt: skip
    precision = {"operand_precision": ["DEFAULT", "DEFAULT"], "algorithm": "ALG_UNSET"}
    config = json.dumps({"gemm_backend_config": {"dot_dimension_numbers": dims, "precision_config": precision}})
    cost = one(f'{AB}\n%x = {output} custom-call(%a, %b), custom_call_target="{target}", backend_config={config}')
    assert (cost.kind, cost.flops, cost.arithmetic) == ("matmul", AB_FLOPS, "bfloat16")


@pytest.mark.parametrize(
    ("dtypes", "attributes", "arithmetic"),
    [
        (("f32", "f32"), "", "tensorfloat32"),
        (("f32", "f32"), ", operand_precision={highest,highest}", "float32"),
        (("f32", "f32"), ", algorithm=dot_bf16_bf16_f32", "bfloat16"),
        (("f8e4m3fn", "f8e5m2"), "", "float8"),
    ],
)
def test_arithmetic_of_products(dtypes: tuple[str, str], attributes: str, arithmetic: str):
    left, right = dtypes
    inputs = AB.replace("bf16", left, 1).replace("bf16", right, 1)
    assert one(f"{inputs}\n%x = f32[2,64,16]{{2,1,0}} {DOT}{attributes}").arithmetic == arithmetic


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("frobnicate(%a, %b)", "frobnicate"),
        ('custom-call(%a, %b), custom_call_target="mystery"', "custom-call mystery"),
        (f"{DOT}, algorithm=dot_new", "dot of bf16 and bf16"),
    ],
)
def test_what_is_not_known_moves_its_operands_and_its_result_through_memory(call: str, name: str):
    inner = computation("inner", f"{AB}\n%i = f32[2,64,16]{{2,1,0}} {call}")
    alone = f"%x = f32[2,64,16]{{2,1,0}} {call}"
    fused = "%y = f32[2,64,16]{2,1,0} fusion(%a, %b), kind=kCustom, calls=%inner"
    made = parse(module_text(f"{AB}\n{alone}\n{fused}", inner))
    for cost in costs(made, executions(made)):
        assert (cost.kind, cost.flops, cost.vector_flops) == ("copy", 0, 0)
        assert (cost.read_bytes, cost.written_bytes) == (2 * (2 * 64 * 32 + 2 * 32 * 16), 4 * 2 * 64 * 16)
    costs(made, executions(made))  # reading the costs again counts nothing twice
    with pytest.raises(AssertionError):
        all_of(made)  # as the other tests read costs
    assert made.unknown.notes() == (f"2 operations that this release does not know count as memory traffic: {name}",)


def attention(backward: bool, mask: str = "CAUSAL", window: int = 0) -> Cost:
    """cuDNN's attention as JAX 0.12 writes it: 8 query and 2 KV heads of width 128, 2 rows of 1024."""
    q, kv, stats = "bf16[2,1024,8,128]{3,2,1,0}", "bf16[2,1024,2,128]{3,2,1,0}", "f32[2,8,1024]{2,1,0}"
    config = {
        "intermediate_tensor_shape": {"element_type": "BF16", "dimensions": ["2", "8", "1024", "1024"]},
        "mask_type": mask,
        "sliding_window_length": window,
    }
    text = json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": config})
    inputs = f"%q = {q} parameter(0)\n%k = {kv} parameter(1)\n%v = {kv} parameter(2)\n%s = {stats} parameter(3)"
    if backward:
        call = f"({q}, {kv}, {kv}, u8[0]{{0}}) custom-call(%q, %k, %v, %s, %q, %q)"
    else:
        call = f"({q}, {stats}, u8[0]{{0}}) custom-call(%q, %k, %v)"
    call = f'%x = {call}, custom_call_target="__cudnn$fmhaSoftmax{"Backward" * backward}"'
    return one(f"{inputs}\n{call}, api_version=API_VERSION_STATUS_RETURNING, backend_config={text}")


@pytest.mark.parametrize(
    ("mask", "window", "pairs"),
    [
        ("NO_MASK", 0, 1024 * 1024),
        ("CAUSAL", 0, 1024 * 1025 // 2),
        ("CAUSAL", 256, 256 * 257 // 2 + (1024 - 256) * 256),
    ],
)
def test_cudnn_attention_counts_the_pairs_that_its_mask_keeps(mask: str, window: int, pairs: int):
    product = 2 * 2 * 8 * pairs * 128
    forward, backward = attention(False, mask, window), attention(True, mask, window)
    assert (forward.kind, forward.flops, forward.recomputed_flops) == ("attention", 2 * product, 0)
    assert (backward.kind, backward.flops, backward.recomputed_flops) == ("attention", 5 * product, product)


def test_kinds_of_ops_without_products():
    body = "%p = f32[8]{0} parameter(0)\n%m = f32[8]{0} multiply(%p, %p)\n%e = f32[8]{0} exponential(%m)"
    moves = "%p.1 = f32[8]{0} parameter(0)\n%t = bf16[8]{0} convert(%p.1)"
    made = module(
        "%a = f32[8]{0} parameter(0)\n%x = f32[8]{0} fusion(%a), kind=kLoop, calls=%f\n"
        "%y = bf16[8]{0} fusion(%a), kind=kLoop, calls=%g\n%z = f32[8]{0} all-reduce(%a)\n%h = f32[8]{0:S(5)} copy(%a)",
        *(computation("f", body), computation("g", moves)),
    )
    found = {cost.op.name: cost for cost in all_of(made)}
    assert {name: cost.kind for name, cost in found.items()} == {
        "x": "elementwise", "y": "copy", "z": "collective", "h": "offload",
    }  # fmt: skip
    assert (found["x"].vector_flops, found["x"].read_bytes, found["x"].written_bytes) == (16, 32, 32)


def test_what_is_traced_in_attention_is_attention():
    tables = (
        'FileNames\n1 "pallas_kernels/attention/reference.py"\n\nFunctionNames\n1 "f"\n\nFileLocations\n'
        "1 {file_name_id=1 function_name_id=1 line=1 end_line=1 column=1 end_column=1}\n\nStackFrames\n"
        "1 {file_location_id=1 parent_frame_id=1}\n\n"
    )
    line = '%x = f32[8]{0} exponential(%a), metadata={op_name="exp" stack_frame_id=1}'
    (cost,) = all_of(module(f"%a = f32[8]{{0}} parameter(0)\n{line}", tables=tables))
    assert cost.kind == "attention"


@pytest.mark.parametrize(
    ("name", "suffix", "again"),
    [
        ("jit(f)/jvp()/dot_general", "", False),
        ("jit(f)/transpose(jvp())/checkpoint/rematted_computation/dot_general", "", True),
        ("jit(f)/dot_general", ".remat2", False),
    ],
)
def test_what_runs_again_is_distinguished(name: str, suffix: str, again: bool):
    cost = one(f'{AB}\n%x{suffix} = bf16[2,64,16]{{2,1,0}} {DOT}, metadata={{op_name="{name}"}}')
    assert recomputed_flops([cost]) == AB_FLOPS * again


def test_what_xla_makes_twice_to_save_memory_runs_again_and_what_it_only_moves_does_not():
    made = module(f"{AB}\n" + "\n".join(
        f"%{name} = bf16[2,64,16]{{2,1,0}} {DOT}"
        for name in ("kept", "kept.remat", "kept.remat2", "moved.remat3", "twice.remat", "twice.remat2")
    ))  # fmt: skip
    again = {cost.op.name for cost in all_of(made) if cost.recomputed_flops}
    assert again == {"kept.remat", "kept.remat2", "twice.remat2"} == executions(made).repeated_by_xla
    assert recomputed_flops(all_of(made)) == 3 * AB_FLOPS


@pytest.mark.parametrize("name", TINY)
def test_flops_of_a_compiled_step_are_those_of_the_mathematics(name: str):
    found = all_of(compiled(name))
    tokens = BATCH // 2 * SEQUENCE  # of a rank: fsdp splits rows, tensor the hidden units
    product = 2 * tokens * EMBED * HIDDEN // 2
    # Up and down projection, forward and twice backward; the activation between them comes back from the host.
    assert flops_by_kind(found) == {"matmul": LAYERS * 2 * 3 * product} and recomputed_flops(found) == 0
    assert {cost.arithmetic for cost in found if cost.flops} == {"bfloat16"}


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
