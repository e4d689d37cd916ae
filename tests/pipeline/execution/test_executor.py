"""The executor: every schedule's gradients are those of the whole batch, and nothing runs that its table has not."""

from collections import Counter
from typing import Any

import jax
import pytest

from jaxpar.pipeline.schedules import SCHEDULES, Kind, make_schedule
from tests.pipeline import toy
from tests.pipeline.toy import ToyRun, plain
from tests.same_bits import worst_difference
from tests.traced import operations

KEEP_NONE = jax.checkpoint_policies.save_only_these_names()

CASES: dict[str, tuple[str, dict[str, int], dict[str, Any]]] = {
    "one microbatch": ("one-stage", {"ranks": 1, "microbatches": 1}, {}),
    "three microbatches": ("one-stage", {"ranks": 1, "microbatches": 3}, {"layers": (2,)}),
    "gpipe": ("gpipe", {"ranks": 3, "microbatches": 4}, {"policy": KEEP_NONE}),
    "fewer microbatches than ranks": ("1f1b", {"ranks": 4, "microbatches": 3}, {"layers": (1, 2, 2, 1)}),
    "interleaved, uneven": ("interleaved", {"ranks": 3, "microbatches": 6, "virtual_stages": 2},
                            {"layers": (2, 1, 1, 2, 1, 1), "fsdp": 2, "zero": 2}),
    "breadth-first": ("breadth-first", {"ranks": 2, "microbatches": 3, "virtual_stages": 3}, {}),
    "breadth-first, chunks held": ("breadth-first", {"ranks": 4, "microbatches": 5, "virtual_stages": 2},
                                   {"fsdp": 2, "zero": 3, "hold": True, "layers": (1, 1, 2, 1, 1, 1, 2, 1)}),
    "zb-uniform": ("zb-uniform", {"ranks": 2, "microbatches": 4, "virtual_stages": 2}, {"fsdp": 2, "zero": 3}),
    "zb-h1, recomputing": ("zb-h1", {"ranks": 4, "microbatches": 7}, {"policy": KEEP_NONE}),
    "zb-v": ("zb-v", {"ranks": 3, "microbatches": 5}, {}),
    "dualpipe-v": ("dualpipe-v", {"ranks": 2, "microbatches": 5}, {"layers": (1, 2, 2, 1)}),
    "v-half": ("v-half", {"ranks": 4, "microbatches": 6}, {"fsdp": 2, "zero": 1}),
    "1f1b, branching": ("1f1b", {"ranks": 3, "microbatches": 5}, {"branching": True, "fsdp": 2, "zero": 3}),
    "zb-h1, branching": ("zb-h1", {"ranks": 2, "microbatches": 3}, {"branching": True, "policy": KEEP_NONE}),
}  # fmt: skip


@pytest.mark.matrix(quick=("gpipe", "1f1b, branching", "zb-h1, recomputing"), ci=4)
@pytest.mark.parametrize("case", CASES)
def test_gradients_and_reports_are_summed_over_the_microbatches(case: str):
    name, sizes, options = CASES[case]
    run = ToyRun(make_schedule(name, **sizes), **options)
    reported, gradients = run()
    wanted_report, wanted = plain(run.layers, run.x, run.seed)
    assert abs(reported - wanted_report) <= 1e-6 * wanted_report
    worst, leaf = worst_difference(gradients, wanted)
    assert worst <= 2e-6, f"gradient of {leaf} differs by {worst:.1e}"


def test_every_schedule_is_run():
    assert {name for name, _, _ in CASES.values()} == set(SCHEDULES)


@pytest.mark.parametrize("name", ["gpipe", "interleaved", "zb-v"])
def test_microbatches_are_loops_and_not_a_longer_program(name: str):
    runs = [ToyRun(make_schedule(name, ranks=2, microbatches=m)) for m in (8, 16)]
    few, many = (len(operations(run.function, *run.arguments)) for run in runs)
    assert few == many


@pytest.mark.parametrize("branching", [False, True], ids=["uniform", "branching"])
def test_a_layer_is_traced_no_more_often_where_more_runs_of_ticks_use_it(
    branching: bool, monkeypatch: pytest.MonkeyPatch
):
    """Once for its output, once for what a split backward taps, once where nothing is kept: whatever the program."""
    calls: list[ToyRun] = []
    monkeypatch.setattr(toy, "layer", lambda *given, layer=toy.layer: (calls.append(run), layer(*given))[1])
    for ranks, microbatches in ((1, 2), (2, 3), (4, 9)):
        schedule = make_schedule("zb-h1", ranks=ranks, microbatches=microbatches)
        run = ToyRun(schedule, layers=(2,) * ranks, policy=KEEP_NONE, branching=branching)
        jax.make_jaxpr(run.function)(*run.arguments)
        assert len(run.program.runs) >= ranks and calls.count(run) <= 4


def counted(run: ToyRun) -> Counter[str]:
    """How often each operation runs in a step."""
    counts: Counter[str] = Counter()
    for equation, times in operations(run.function, *run.arguments):
        counts[equation.primitive.name] += times
    return counts


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-h1", "zb-v"])
@pytest.mark.parametrize("policy", [None, KEEP_NONE], ids=["keep all", "keep none"])
def test_each_tick_multiplies_what_its_actions_multiply_and_no_more(name: str, policy: Any):
    """A layer has two matmuls forward, and four backward, whole or split: two with B and two with W. `up` is run again
    where nothing is kept, `down` never: no gradient needs it. The loss has three, in the ticks in which one is due."""
    schedule = make_schedule(name, ranks=2, microbatches=4)
    counts = counted(ToyRun(schedule, policy=policy))
    ticks = Counter(kind for tick in schedule.ticks for kind in {action.kind for rank in tick for action in rank})
    last = [any(str(a).startswith(f"{schedule.chunks - 1}B") for a in rank) for t in schedule.ticks for rank in t]
    of_b = 2 if schedule.splits_backward else 4
    wanted = 2 * ticks[Kind.FORWARD] + of_b * ticks[Kind.BACKWARD] + 2 * ticks[Kind.WEIGHT] + 3 * sum(last)
    assert counts["dot_general"] == wanted + (policy is not None) * ticks[Kind.BACKWARD]


@pytest.mark.parametrize("microbatches", [4, 8])
def test_chunks_that_are_held_are_gathered_twice_and_scattered_once_in_a_batch(microbatches: int):
    """But the last one once: its backward begins where its forwards end."""
    schedule = make_schedule("breadth-first", ranks=2, microbatches=microbatches, virtual_stages=2)
    counts = counted(ToyRun(schedule, layers=(2, 2, 2, 2), fsdp=2, zero=3, hold=True))
    matrices, chunks = 2, 2
    assert counts["all_gather"] == matrices * (2 * chunks - 1)
    assert counts["reduce_scatter"] == matrices * chunks


@pytest.mark.parametrize("zero", [1, 2])
def test_weights_are_gathered_and_gradients_scattered_once_a_step(zero: int):
    counts = counted(ToyRun(make_schedule("1f1b", ranks=2, microbatches=8), fsdp=2, zero=zero))
    assert counts["all_gather"] == counts["reduce_scatter"] == 2


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    # zb-v has 18 ticks each; what goes from chunk 1 to chunk 2 stays on its rank
    [("gpipe", 8, 8), ("1f1b", 9, 8), ("interleaved", 17, 17), ("zb-v", 10, 11)],
)
def test_ticks_send_only_in_the_ways_that_their_run_needs(name: str, forward: int, backward: int):
    """Where all ranks go forward nothing goes back, and what the first chunk makes backward goes nowhere."""
    sent = counted(ToyRun(make_schedule(name, ranks=2, microbatches=8)))["ppermute"]
    assert sent == forward + backward


def test_a_program_for_another_number_of_ranks_is_not_run():
    run = ToyRun(make_schedule("1f1b", ranks=2, microbatches=2))
    run.program = ToyRun(make_schedule("one-stage", ranks=1, microbatches=2)).program
    with pytest.raises(AssertionError, match="1 ranks on a pipe axis of 2"):
        jax.make_jaxpr(run.function)(*run.arguments)
