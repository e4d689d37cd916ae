"""A program becomes a trace: transfers between start and done, loops, branches, links."""

from operator import attrgetter

import pytest

from jaxpar.compiler.program.attribution import movements
from jaxpar.compiler.program.costs.ops import costs
from jaxpar.compiler.program.from_program import Schedule, schedule
from jaxpar.compiler.program.hlo.records import Module
from jaxpar.compiler.program.loops import executions
from tests.compiler.program.programs import TINY, compiled, module
from tests.compiler.program.tiny_step import GPUS_PER_HOST, MESH


def run(made: Module, *, several: bool = False, gpus_per_host: int = 8, **seconds: float) -> Schedule:
    """The schedule in which transfer `x` takes `seconds["x"]` and a kernel of one float32 a second."""
    counts = executions(made)
    mesh = {"fsdp": 2} if made.partitions == 2 else {"replica": 2, "fsdp": 2}
    moves = movements(made, counts, mesh, gpus_per_host)
    kernels = {c.op.name: (c.read_bytes + c.written_bytes) / 8 for c in costs(made, counts) if c.computes}
    time = lambda move: seconds[move.transfer.start.name]
    return schedule(made, moves, kernels, time, 0.0, attrgetter("link" if several else "channel"))


def entry(*lines: str, others: tuple[str, ...] = (), partitions: int = 2) -> Module:
    return module("\n".join(("%start = f32[] parameter(0)", *lines)), *others, partitions=partitions)


def gather(name: str, groups: str = "") -> str:
    return f"%{name} = ((f32[]), f32[]) all-reduce-start(%start){groups}"


def done(name: str) -> str:
    return f"%{name}d = f32[] all-reduce-done(%{name})"


def work(name: str) -> str:
    """One second of compute."""
    return f"%{name} = f32[] negate(%start)"


def exposed(found: Schedule) -> dict[str, float]:
    return {overlap.movement.transfer.start.name: overlap.time.exposed for overlap in found.overlaps}


def test_asynchronous_and_synchronous_transfers_and_kernels():
    found = run(entry(gather("a"), "%s = f32[] all-reduce(%start)", work("x"), work("y"), done("a")), a=3.0, s=4.0)
    assert exposed(found) == {"a": 1.0, "s": 4.0} and found.overlaps[0].time.beside == (("x", 1.0), ("y", 1.0))
    assert (found.step.compute, found.exposed_seconds) == (2.0, 5.0)


def test_copies_to_and_from_the_host_go_at_the_same_time():
    kept = "%k = (f32[]{:S(5)}, f32[], u32[]) copy-start(%start)", "%kept = f32[]{:S(5)} copy-done(%k)"
    there = "%h = (f32[]{:S(5)}, f32[], u32[]) copy-start(%start)", "%hd = f32[]{:S(5)} copy-done(%h)"
    back = "%g = (f32[], f32[]{:S(5)}, u32[]) copy-start(%kept)", "%gd = f32[] copy-done(%g)"
    found = run(entry(*kept, there[0], back[0], work("x"), work("y"), there[1], back[1]), k=1.0, h=3.0, g=4.0)
    # Both have the two seconds of compute for themselves, and the second that h is waited for passes for g, too.
    assert exposed(found) == {"k": 1.0, "h": 1.0, "g": 1.0}


@pytest.mark.parametrize("name", TINY)
def test_nothing_is_hidden_twice_in_a_compiled_step(name: str):
    time = lambda cost: max(cost.flops / 1e15, (cost.read_bytes + cost.written_bytes) / 3e12)
    program = compiled(name)
    counts = executions(program)
    moves = movements(program, counts, MESH, GPUS_PER_HOST)
    kernels = {cost.op.name: time(cost) for cost in costs(program, counts) if cost.computes}
    made = schedule(program, moves, kernels, lambda move: move.sent_bytes / 1e11, 0.0)
    step = made.step
    assert step.seconds == pytest.approx(step.compute + made.exposed_seconds, rel=1e-9)
    for channel in ("wire", "to_host", "from_host"):
        hidden = sum(
            (o.time.seconds - o.time.exposed) * o.movement.executions
            for o in made.overlaps
            if o.movement.channel == channel
        )
        # The host's transfers go on while others are waited for.
        assert 0.0 < hidden <= step.compute + (made.exposed_seconds if channel != "wire" else 0.0)
