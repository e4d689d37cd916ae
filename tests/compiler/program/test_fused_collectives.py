"""Small collectives that XLA writes as a fusion, a kernel of their own, count like any other."""

from jaxpar.compiler.program.attribution import movements
from jaxpar.compiler.program.costs.ops import costs
from jaxpar.compiler.program.hlo.records import ProgramError
from jaxpar.compiler.program.loops import executions
from tests.compiler.program.programs import computation, module
from tests.sentences import refused

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
MESH = {"tensor": 4}


def test_a_collective_inside_a_fusion_is_a_transfer():
    fused = computation("fused", f"%p = f32[16,32]{{1,0}} parameter(0)\n%r = f32[16,32]{{1,0}} {REDUCE.format('%p')}")
    program = module(ENTRY, MAXIMUM, fused, partitions=4)
    counts = executions(program)
    (movement,) = movements(program, counts, MESH, 4)
    assert (movement.kind, movement.axes, movement.collectives) == ("all-reduce", ("tensor",), ("reduce_max",))
    assert movement.sent_bytes == 2 * 16 * 32 * 4 * 3 / 4
    assert not movement.transfer.synchronous
    assert [cost.kind for cost in costs(program, counts)] == ["collective"]


def test_a_fusion_that_computes_beside_its_collective_is_refused():
    fused = computation(
        "fused",
        f"%p = f32[16,32]{{1,0}} parameter(0)\n%n = f32[16,32]{{1,0}} negate(%p)\n"
        f"%r = f32[16,32]{{1,0}} {REDUCE.format('%n')}",
    )
    program = module(ENTRY, MAXIMUM, fused, partitions=4)
    with refused("line ", "fusion s", "collective", error=ProgramError):
        movements(program, executions(program), MESH, 4)
