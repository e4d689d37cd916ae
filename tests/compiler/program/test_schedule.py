"""Overlap: compute between a start and its done hides the transfer, once."""

from __future__ import annotations

from operator import attrgetter

import pytest

from jaxpar.compiler.program.attribution import movements
from jaxpar.compiler.program.costs.ops import Cost, costs
from jaxpar.compiler.program.hlo.records import Module
from jaxpar.compiler.program.loops import executions
from jaxpar.compiler.program.schedule import Overlap, Schedule, schedule
from tests.compiler.program.programs import TINY, compiled, computation, condition, loop, module
from tests.compiler.program.tiny_step import GPUS_PER_HOST, MESH

MESH_OF_TWO = {"fsdp": 2}


def second(cost: Cost) -> float:
    """Of a device that reads or writes one float32 of 4 bytes in half a second: `negate` of one takes a second."""
    return (cost.read_bytes + cost.written_bytes) / 8 if cost.computes else 0.0


def run(made: Module, *, several: bool = False, gpus_per_host: int = 8, **seconds: float) -> Schedule:
    """The schedule in which transfer `x` takes `seconds["x"]`; conditionals run each branch half of the time."""
    half = lambda op: (0.5, 0.5)
    counts = executions(made, half)
    mesh = MESH_OF_TWO if made.partitions == 2 else {"replica": 2, "fsdp": 2}
    moves = movements(made, counts, mesh, gpus_per_host)
    time = lambda move: seconds[move.transfer.start.name]
    return schedule(made, moves, costs(made, counts), second, time, half, attrgetter("link" if several else "channel"))


def entry(*lines: str, others: tuple[str, ...] = ()) -> Module:
    return module("\n".join(("%start = f32[] parameter(0)", *lines)), *others, partitions=2)


def gather(name: str) -> str:
    return f"%{name} = ((f32[]), f32[]) all-reduce-start(%start)"


def done(name: str) -> str:
    return f"%{name}d = f32[] all-reduce-done(%{name})"


def work(name: str) -> str:
    """One second of compute."""
    return f"%{name} = f32[] negate(%start)"


def exposed(found: Schedule) -> dict[str, float]:
    return {overlap.movement.transfer.start.name: overlap.exposed for overlap in found.overlaps}


def of(found: Schedule, name: str) -> Overlap:
    (overlap,) = [o for o in found.overlaps if o.movement.transfer.start.name == name]
    return overlap


@pytest.mark.parametrize(("needed", "left"), [(5.0, 3.0), (2.0, 0.0), (0.5, 0.0)])
def test_enclosed_compute_hides_a_transfer(needed: float, left: float):
    found = run(entry(gather("a"), work("x"), work("y"), done("a"), work("z")), a=needed)
    assert exposed(found) == {"a": left}
    assert [each.op.name for each in of(found, "a").enclosed] == ["x", "y"]
    assert of(found, "a").enclosed_seconds == 2.0
    assert found.compute_seconds == 3.0
    assert found.exposed_fraction == left / (left + 3.0)


def test_a_pair_that_encloses_nothing_is_exposed():
    found = run(entry(work("x"), gather("a"), done("a"), work("y")), a=4.0)
    assert exposed(found) == {"a": 4.0}
    assert of(found, "a").enclosed == ()


def test_a_synchronous_transfer_is_exposed_from_start_to_end():
    found = run(entry(gather("a"), "%s = f32[] all-reduce(%start)", work("x"), work("y"), done("a")), a=2.0, s=4.0)
    assert exposed(found) == {"a": 0.0, "s": 4.0}
    assert of(found, "s").enclosed == ()


def test_overlapping_pairs_share_compute_and_the_first_issued_takes_it_first():
    found = run(entry(gather("a"), gather("b"), work("x"), work("y"), done("a"), work("z"), done("b")), a=1.5, b=4.0)
    # a takes 1.5 of x and y; b their other 0.5 and z.
    assert exposed(found) == {"a": 0.0, "b": 2.5}
    assert of(found, "b").enclosed_seconds == 3.0


def test_waiting_for_a_later_one_means_waiting_for_the_earlier():
    found = run(entry(gather("a"), gather("b"), work("x"), done("b"), work("y"), done("a")), a=3.0, b=1.0)
    # When b is waited for, the stream has yet to finish a: 2 seconds of a, then b.
    assert exposed(found) == {"a": 2.0, "b": 1.0}


def body(name: str, *lines: str) -> tuple[str, str]:
    inside = "\n".join(line.replace("%start", f"%{name}_start") for line in ("%start = f32[] parameter(0)", *lines))
    return computation(name, inside), condition(name)


def test_a_loop_between_start_and_done_counts_all_its_iterations():
    found = run(entry(gather("a"), loop("w", "b", 6), done("a"), others=body("b", work("x"), work("y"))), a=20.0)
    assert exposed(found) == {"a": 8.0}
    assert [(each.op.name, each.seconds) for each in of(found, "a").enclosed] == [("w", 12.0)]


def test_nested_loops_multiply():
    outer = body("outer", loop("v", "inner", 3), work("x"))
    found = run(entry(gather("a"), loop("w", "outer", 2), done("a"), others=(*outer, *body("inner", work("y")))), a=9.0)
    assert exposed(found) == {"a": 9.0 - 2 * (3 + 1)}
    assert found.compute_seconds == 8.0


def test_a_transfer_in_a_loop_takes_the_compute_there_before_one_around_it():
    inside = body("b", gather("i"), work("x"), work("y"), done("i"))
    found = run(entry(gather("a"), loop("w", "b", 10), done("a"), others=inside), a=9.0, i=1.5)
    assert exposed(found) == {"a": 4.0, "i": 0.0}  # half a second of each iteration is left for a
    assert of(found, "a").enclosed_seconds == 20.0


def test_exposed_time_of_a_loop_counts_each_iteration():
    found = run(entry(loop("w", "b", 10), others=body("b", gather("i"), work("x"), done("i"))), i=1.5)
    assert exposed(found) == {"i": 0.5}
    assert found.exposed_seconds == 5.0
    assert found.exposed_fraction == 5.0 / 15.0


def test_branches_count_by_their_shares():
    line = "%c = f32[] conditional(%start, %start, %start), true_computation=%b, false_computation=%n"
    idle = computation("n", "%n_start = f32[] parameter(0)")
    found = run(entry(gather("a"), line, done("a"), others=(body("b", work("x"), work("y"))[0], idle)), a=3.0)
    assert exposed(found) == {"a": 2.0}
    assert found.compute_seconds == 1.0


HOST_COPY = "%h = (f32[]{:S(5)}, f32[], u32[]) copy-start(%start)", "%hd = f32[]{:S(5)} copy-done(%h)"


def test_the_host_and_the_other_devices_each_get_the_compute_for_themselves():
    found = run(entry(gather("a"), HOST_COPY[0], work("x"), work("y"), done("a"), HOST_COPY[1]), a=2.0, h=3.0)
    assert exposed(found) == {"a": 0.0, "h": 1.0}


def test_a_copy_to_the_host_goes_on_while_another_transfer_is_waited_for():
    found = run(entry(HOST_COPY[0], "%s = f32[] all-reduce(%start)", work("x"), HOST_COPY[1]), s=4.0, h=6.0)
    assert exposed(found) == {"s": 4.0, "h": 1.0}


BACK = "%g = (f32[], f32[]{:S(5)}, u32[]) copy-start(%kept)", "%gd = f32[] copy-done(%g)"
KEPT = "%k = (f32[]{:S(5)}, f32[], u32[]) copy-start(%start)", "%kept = f32[]{:S(5)} copy-done(%k)"


def test_copies_to_and_from_the_host_go_at_the_same_time():
    lines = *KEPT, HOST_COPY[0], BACK[0], work("x"), work("y"), HOST_COPY[1], BACK[1]
    found = run(entry(*lines), k=1.0, h=3.0, g=4.0)
    # Both have the two seconds of compute for themselves, and the second that h is waited for passes for g, too.
    assert exposed(found) == {"k": 1.0, "h": 1.0, "g": 1.0}


def test_copies_in_one_direction_go_one_after_another():
    second = HOST_COPY[0].replace("%h ", "%i "), HOST_COPY[1].replace("%hd", "%id").replace("(%h)", "(%i)")
    found = run(entry(HOST_COPY[0], second[0], work("x"), HOST_COPY[1], second[1]), h=1.0, i=3.0)
    assert exposed(found) == {"h": 0.0, "i": 3.0}


def test_an_asynchronous_kernel_is_compute():
    lines = (
        "%k = ((f32[]), f32[], u32[]) fusion-start(%start), kind=kLoop, calls=%f",
        "%kd = f32[] fusion-done(%k)",
    )
    inside = computation("f", "%p.1 = f32[] parameter(0)\n%n.1 = f32[] negate(%p.1)")
    found = run(entry(gather("a"), *lines, done("a"), others=(inside,)), a=3.0)
    assert exposed(found) == {"a": 2.0}


@pytest.mark.parametrize("name", TINY)
def test_nothing_is_hidden_twice_in_a_compiled_step(name: str):
    kernel = lambda cost: cost.computes * max(cost.flops / 1e15, (cost.read_bytes + cost.written_bytes) / 3e12)
    found = {}
    for part in ("program", "dump"):
        made = compiled(name, part)
        counts = executions(made)
        moves = movements(made, counts, MESH, GPUS_PER_HOST)
        found[part] = schedule(made, moves, costs(made, counts), kernel, lambda move: move.sent_bytes / 1e11)
    made = found["program"]
    assert made.exposed_seconds == pytest.approx(found["dump"].exposed_seconds, rel=1e-9)
    assert made.compute_seconds == pytest.approx(found["dump"].compute_seconds, rel=1e-9)
    for overlap in made.overlaps:
        assert overlap.exposed <= overlap.seconds
        assert (overlap.exposed == overlap.seconds) or not overlap.movement.transfer.synchronous
    for channel in ("wire", "to_host", "from_host"):
        hidden = sum(
            (o.seconds - o.exposed) * o.movement.executions for o in made.overlaps if o.movement.channel == channel
        )
        # The host's transfers go on while others are waited for.
        assert 0.0 < hidden <= made.compute_seconds + (made.exposed_seconds if channel != "wire" else 0.0)


def of_links(*lines: str) -> Module:
    """Of four devices in two hosts: `inside` is between neighbours, `across` between hosts."""
    text = "\n".join(("%start = f32[] parameter(0)", *lines))
    return module(text, partitions=4)


def inside(name: str) -> str:
    return f"%{name} = ((f32[]), f32[]) all-reduce-start(%start), replica_groups={{{{0,1}},{{2,3}}}}"


def across(name: str) -> str:
    return f"%{name} = ((f32[]), f32[]) all-reduce-start(%start), replica_groups={{{{0,2}},{{1,3}}}}"


LINKS = (inside("a"), across("b"), work("x"), work("y"), done("a"), work("z"), done("b"))


def test_with_one_collective_at_a_time_other_links_wait_too():
    found = run(of_links(*LINKS), gpus_per_host=2, a=3.0, b=3.0)
    assert exposed(found) == {"a": 1.0, "b": 2.0}


def test_where_several_may_be_in_flight_links_inside_and_between_nodes_are_apart():
    """a has x and y, and is waited for by a second, in which b goes on; b has x, y, that second, and z."""
    found = run(of_links(*LINKS), several=True, gpus_per_host=2, a=3.0, b=4.5)
    assert exposed(found) == {"a": 1.0, "b": 0.5}
    same = run(of_links(inside("a"), inside("b"), *LINKS[2:]), several=True, gpus_per_host=2, a=3.0, b=4.5)
    assert exposed(same) == {"a": 1.0, "b": 3.5}, "one link carries one after the other"
