"""Transfers in the project's words: collective, axis, bytes, dtype, how often, across hosts."""

import inspect

import pytest

import jaxpar.mesh.collectives as collectives
import jaxpar.mesh.matrices as matrices
from jaxpar.compiler.program.attribution import DUALS, Movement, collective_of, movements
from jaxpar.compiler.program.costs.ops import costs
from jaxpar.compiler.program.hlo.records import Module, ProgramError
from jaxpar.compiler.program.loops import executions
from tests.compiler.program.programs import TINY, compiled, computation, module
from tests.compiler.program.tiny_step import BATCH, EMBED, GPUS_PER_HOST, HIDDEN, LAYERS, MESH, SEQUENCE
from tests.sentences import refused

AXES = {"fsdp": 2, "tensor": 4}


def moves(made: Module, mesh: dict[str, int], per_host: int = 8) -> list[Movement]:
    return movements(made, executions(made), mesh, per_host)


def one(lines: str, mesh: dict[str, int] = AXES, per_host: int = 8) -> Movement:
    (found,) = moves(module(lines, SUM, partitions=8), mesh, per_host)
    return found


SUM = computation("sum", "%l = f32[] parameter(0)\n%r = f32[] parameter(1)\n%s = f32[] add(%l, %r)")
X = "%x = bf16[16,32]{1,0} parameter(0)"
X_BYTES = 16 * 32 * 2


@pytest.mark.parametrize(
    ("opcode", "attributes", "result", "axes", "sent"),
    [
        ("all-gather", "replica_groups=[2,4]<=[8]", "bf16[64,32]", ("tensor",), X_BYTES * 3),
        ("reduce-scatter", "replica_groups=[2,4]<=[8], to_apply=%sum", "bf16[4,32]", ("tensor",), X_BYTES * 3 / 4),
        ("reduce-scatter", "to_apply=%sum", "bf16[2,32]", ("fsdp", "tensor"), X_BYTES * 7 / 8),
        ("all-reduce", "replica_groups={{0,4},{1,5},{2,6},{3,7}}", "bf16[16,32]", ("fsdp",), 2 * X_BYTES / 2),
        ("all-to-all", "replica_groups=mesh['a'=2,'b'=4] {'b'}", "bf16[16,32]", ("tensor",), X_BYTES * 3 / 4),
        ("collective-permute", "source_target_pairs={{0,4},{4,0}}", "bf16[16,32]", ("fsdp",), X_BYTES),
    ],
)  # fmt: skip
def test_bytes_sent_follow_the_formulas_of_the_collectives(opcode, attributes, result, axes, sent):
    move = one(f"{X}\n%y = {result}{{1,0}} {opcode}(%x), {attributes}")
    assert (move.kind, move.axes, move.operand_bytes, move.sent_bytes) == (opcode, axes, X_BYTES, sent)
    assert [part.dtype for part in move.parts] == ["bf16"]
    assert move.transfer.synchronous


INNER = "((bf16[16,32]{1,0}), bf16[64,32]{1,0})"
"""As `compiled.as_text()` writes it; other versions leave out the inner tuple."""


@pytest.mark.parametrize("shape", [INNER, INNER.replace("((", "(").replace("),", ",")])
def test_an_asynchronous_pair_is_one_transfer_in_every_form(shape: str):
    move = one(
        f"{X}\n%s = {shape} all-gather-start(%x), replica_groups=[2,4]<=[8], dimensions={{0}}\n"
        "%d = bf16[64,32]{1,0} all-gather-done(%s)"
    )
    assert (move.kind, move.operand_bytes, move.sent_bytes) == ("all-gather", X_BYTES, 3 * X_BYTES)
    assert (move.transfer.start.name, move.transfer.done.name) == ("s", "d")
    assert not move.transfer.synchronous


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"%s = {INNER} all-gather-start(%x), replica_groups=[2,4]<=[8]", "s has no done op in main"),
        ("%d = bf16[64,32]{1,0} all-gather-done(%x)", "d has no start in main"),
    ],
)
def test_half_of_an_asynchronous_pair_is_refused(line: str, problem: str):
    with pytest.raises(ProgramError, match=problem):
        one(f"{X}\n{line}")


def test_a_combined_collective_has_a_part_for_each_input():
    name = "jit(f)/checkpoint/(scatter_sequence/all_gather:rematted_computation/gather_weight/all_gather)"
    move = one(
        f"{X}\n%w = f32[4]{{0}} parameter(1)\n%y = (bf16[64,32]{{1,0}}, f32[16]{{0}}) all-gather(%x, %w), "
        f'replica_groups=[2,4]<=[8], dimensions={{0}}, metadata={{op_name="{name}"}}'
    )
    assert [(part.collective, part.dtype, part.sent_bytes) for part in move.parts] == [
        ("gather_sequence", "bf16", 3 * X_BYTES),
        ("gather_weight", "f32", 3 * 16),
    ]


@pytest.mark.parametrize(
    ("name", "opcode", "collective"),
    [
        ("jit(f)/jvp(gather_sequence)/all_gather", "all-gather", "gather_sequence"),
        ("jit(f)/transpose(jvp())/checkpoint/gather_sequence/reduce_scatter", "reduce-scatter", "scatter_sequence"),
        ("jit(f)/transpose(jvp(gather_context))/reduce_scatter", "reduce-scatter", "scatter_context"),
        ("jit(f)/scatter_gradient/reduce_scatter", "reduce-scatter", "scatter_gradient"),
        ("jit(f)/transpose(jvp(gather_matrices))/all_to_all", "all-to-all", "scatter_matrices"),
        ("jit(f)/gather_weight/reduce_sum/psum", "all-reduce", "reduce_sum"),
        ("jit(f)/jvp(bse,ehd->bshd)/dot_general", "all-gather", None),
        ("", "all-reduce", None),
    ],
)
def test_the_collective_is_the_innermost_scope_or_its_dual(name: str, opcode: str, collective: str | None):
    assert collective_of(name, opcode) == collective


def test_every_collective_of_the_mesh_is_known():
    scopes = {
        name
        for source in (collectives, matrices)
        for name, value in inspect.getmembers(source, inspect.isfunction)
        if value.__module__ == source.__name__ and f'"{name}"' in inspect.getsource(value)
    }
    assert len(scopes) >= 9 and scopes <= set(DUALS)


HOST = "%h = bf16[4,8,32]{2,1,0:S(5)} parameter(1)\n%i = s32[] constant(0)"


@pytest.mark.parametrize(
    ("line", "kind", "moved"),
    [
        ("%c = bf16[16,32]{1,0:S(5)} copy(%x)", "to_host", X_BYTES),
        ("%c = bf16[4,8,32]{2,1,0} copy(%h)", "from_host", 2 * X_BYTES),
        ("%c = bf16[1,8,32]{2,1,0} dynamic-slice(%h, %i, %i, %i)", "from_host", X_BYTES // 2),
        (
            "%s = (bf16[16,32]{1,0:S(5)}, bf16[16,32]{1,0}, u32[]) copy-start(%x)\n"
            "%c = bf16[16,32]{1,0:S(5)} copy-done(%s)",
            "to_host",
            X_BYTES,
        ),
    ],
)  # fmt: skip
def test_copies_to_and_from_the_host_are_transfers(line: str, kind: str, moved: int):
    move = one(f"{X}\n{HOST}\n{line}")
    assert (move.kind, move.sent_bytes, move.axes, move.transfer.channel) == (kind, moved, (), "host")


@pytest.mark.parametrize("name", TINY)
def test_transfers_of_a_compiled_step(name: str):
    per_step: dict[tuple, float] = {}
    for move in moves(compiled(name), MESH, GPUS_PER_HOST):
        for each in move.parts:
            key = (each.collective, move.axes, move.kind, move.crosses_nodes, each.dtype)
            per_step[key] = per_step.get(key, 0.0) + move.executions * each.sent_bytes
    ranks = 2
    weight = EMBED // ranks * HIDDEN // ranks * 2
    rows = BATCH // ranks * SEQUENCE // ranks * EMBED * 2  # what one rank has of x
    assert per_step == {
        ("gather_sequence", ("tensor",), "all-gather", False, "bf16"): 3 * LAYERS * rows,  # forward, again, cotangent
        ("scatter_sequence", ("tensor",), "reduce-scatter", False, "bf16"): 2 * LAYERS * rows,
        ("gather_weight", ("fsdp",), "all-gather", False, "bf16"): 2 * 2 * LAYERS * weight,
        ("scatter_gradient", ("fsdp",), "reduce-scatter", False, "bf16"): 2 * LAYERS * weight,
        ("scatter_gradient", ("fsdp", "tensor"), "reduce-scatter", False, "bf16"): LAYERS * weight * 3 / 4,
        ("reduce_sum", ("pipe",), "all-reduce", True, "bf16"): LAYERS * weight / 4,
        ("reduce_sum", ("pipe", "fsdp", "tensor"), "all-reduce", True, "f32"): 2 * 4 * 7 / 8,
        ("gather_matrices", ("fsdp", "tensor"), "all-to-all", False, "bf16"): rows * 3 / 4,
        ("scatter_matrices", ("fsdp", "tensor"), "all-to-all", False, "bf16"): rows * 3 / 4,
        (None, ("pipe",), "collective-permute", True, "bf16"): 2 * rows,
        (None, (), "to_host", False, "bf16"): LAYERS * BATCH // 2 * SEQUENCE * HIDDEN // 2 * 2,
        (None, (), "from_host", False, "bf16"): LAYERS * BATCH // 2 * SEQUENCE * HIDDEN // 2 * 2,
    }


MAXIMUM = computation(
    "maximum",
    """
    %a = f32[] parameter(0)
    %b = f32[] parameter(1)
    %m = f32[] maximum(%a, %b)
    """,
)
REDUCE = 'all-reduce({}), replica_groups={{{{0,1,2,3}}}}, to_apply=%maximum, metadata={{op_name="f/reduce_max/pmax"}}'
ENTRY = """
    %x = f32[16,32]{1,0} parameter(0)
    %s = ((f32[16,32]), f32[16,32]) fusion-start(%x), kind=kCustom, calls=%fused, metadata={op_name="reduce_max"}
    %d = f32[16,32]{1,0} fusion-done(%s)
    """
FOUR_TENSOR = {"tensor": 4}


def test_a_collective_inside_a_fusion_is_a_transfer():
    fused = computation("fused", f"%p = f32[16,32]{{1,0}} parameter(0)\n%r = f32[16,32]{{1,0}} {REDUCE.format('%p')}")
    program = module(ENTRY, MAXIMUM, fused, partitions=4)
    counts = executions(program)
    (movement,) = movements(program, counts, FOUR_TENSOR, 4)
    assert (movement.kind, movement.axes, movement.collectives) == ("all-reduce", ("tensor",), ("reduce_max",))
    assert movement.sent_bytes == 2 * 16 * 32 * 4 * 3 / 4 and not movement.transfer.synchronous
    assert [cost.kind for cost in costs(program, counts)] == ["collective"]


def test_a_fusion_that_computes_beside_its_collective_is_refused():
    fused = computation(
        "fused",
        f"%p = f32[16,32]{{1,0}} parameter(0)\n%n = f32[16,32]{{1,0}} negate(%p)\n"
        f"%r = f32[16,32]{{1,0}} {REDUCE.format('%n')}",
    )
    program = module(ENTRY, MAXIMUM, fused, partitions=4)
    with refused("line ", "fusion s", "collective", error=ProgramError):
        movements(program, executions(program), FOUR_TENSOR, 4)


def test_a_collective_alone_in_an_asynchronous_call_is_a_transfer():
    """XLA has it on a stream of its own, so that it shares no link with others."""
    lines = (
        f"%p = f32[16,32]{{1,0}} parameter(0)\n%b = f32[512]{{0}} bitcast(%p)\n%r = f32[512]{{0}} {REDUCE.format('%b')}"
    )
    entry = """
        %x = f32[16,32]{1,0} parameter(0)
        %s = ((f32[16,32]), f32[512]) call-start(%x), to_apply=%called, metadata={op_name="f/call"}
        %d = f32[512]{0} call-done(%s)
        """
    program = module(entry, MAXIMUM, computation("called", lines), partitions=4)
    counts = executions(program)
    (movement,) = movements(program, counts, FOUR_TENSOR, 4)
    assert (movement.kind, movement.axes, movement.collectives) == ("all-reduce", ("tensor",), ("reduce_max",))
    assert movement.sent_bytes == 2 * 16 * 32 * 4 * 3 / 4
    assert (movement.transfer.synchronous, movement.channel) == (False, "wire apart")
    assert [cost.kind for cost in costs(program, counts)] == ["collective"]
