"""Simulated bubbles and chunks in flight are those of the papers' closed formulas."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.pipeline.actions import Action
from jaxpar.pipeline.schedules import Kind, Schedule, make_schedule
from jaxpar.pipeline.table import needs
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.formulas import Bubble, published_bubble
from jaxpar.pipeline.timing.simulate import Simulation, simulate
from tests.pipeline.any_schedule import any_schedule
from tests.pipeline.timing.closed_forms import lockstep_bubble, lockstep_in_flight, published_in_flight

UNIT = Durations(forward=1, backward=2, weight=1)
"""F, B and W of one length."""


@st.composite
def durations(draw: st.DrawFn) -> Durations:
    forward, inputs, weight = (draw(st.integers(1, 6)) for _ in range(3))
    return Durations(forward, inputs + weight, weight)


def agrees(simulation: Simulation, formula: Bubble | None) -> bool:
    if formula is None:
        return True
    return simulation.bubble == formula.time if formula.exact else simulation.bubble <= formula.time


@settings(deadline=None, max_examples=150)
@given(any_schedule(), durations())
def test_bubbles_are_those_of_the_formulas_or_below_where_it_is_a_bound(schedule: Schedule, times: Durations):
    assert agrees(simulate(schedule, times), published_bubble(schedule, times))
    assert lockstep_bubble(schedule, times) in (None, simulate(schedule, times, mode="lockstep").bubble)


@settings(deadline=None, max_examples=80)
@given(any_schedule())
def test_chunks_in_flight_for_actions_of_one_length(schedule: Schedule):
    published, lockstep = simulate(schedule, UNIT), simulate(schedule, UNIT, mode="lockstep")
    for simulation, formula in ((published, published_in_flight), (lockstep, lockstep_in_flight)):
        assert formula(schedule) in (None, simulation.peak_in_flight)


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_no_rank_of_zb_v_waits_between_its_actions_where_f_b_and_w_take_as_long(p: int):
    simulation = simulate(make_schedule("zb-v", ranks=p, microbatches=2 * p), UNIT)
    assert simulation.longest_rank == simulation.ideal
    assert max(simulation.peak_in_flight) == 2 * p  # p microbatches of both chunks: 1F1B's


@pytest.mark.parametrize("p", [2, 3, 4, 6, 8])
def test_v_half_has_half_of_1f1bs_bubble_and_memory(p: int):
    half = simulate(make_schedule("v-half", ranks=p, microbatches=3 * p), UNIT)
    whole = simulate(make_schedule("1f1b", ranks=p, microbatches=3 * p), Durations(2, 4, 2))
    assert half.bubble <= whole.bubble / 2
    assert max(half.peak_in_flight) / 2 == (p + 2) // 2 <= max(whole.peak_in_flight) / 2 + 1


@pytest.mark.parametrize("p", [2, 3, 4, 6])
@pytest.mark.parametrize("times", [(2, 3, 2), (3, 2, 2), (3, 4, 3), (4, 3, 3)])
def test_v_half_has_no_bubble_in_its_steady_state_where_its_paper_states_it(p: int, times: tuple[int, int, int]):
    """W + 2 B >= 2 F and W + 2 F >= 2 B (arXiv:2405.15362): more microbatches then do not lengthen the bubble."""
    f, b, w = times
    bubbles = [
        simulate(make_schedule("v-half", ranks=p, microbatches=m), Durations(f, b + w, w)).bubble
        for m in (3 * p, 6 * p)
    ]
    assert bubbles[0] == bubbles[1]


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 8), (4, 8), (4, 11), (6, 12)])
@pytest.mark.parametrize("times", [(1, 1, 1), (2, 2, 1), (3, 3, 2)])
def test_dualpipe_v_with_forward_and_backward_as_one_action_has_the_bubble_that_its_authors_state(
    p: int, m: int, times: tuple[int, int, int]
):
    f, b, w = times
    schedule = make_schedule("dualpipe-v", ranks=p, microbatches=m)
    makespan = in_blocks([overlapped(schedule, rank) for rank in range(p)], dict(zip(Kind, times, strict=True)))
    # (PP/2 - 1)(F&B + B - 3W) with PP = 2p stages, F&B = F + B, and B the whole backward.
    assert makespan - 2 * m * (f + b + w) == (p - 1) * ((f + b + w) + (b + w) - 3 * w)


def overlapped(schedule: Schedule, rank: int) -> list[tuple[Action, ...]]:
    """A rank's order in blocks: whole backwards, and in the steady state a forward with a whole backward."""
    p, m, order = schedule.ranks, schedule.microbatches, list(schedule.orders[rank])
    after = p - 1 - rank
    sizes = [1] * (2 * after + 2 * (rank + 1) + 3 * after)
    steady = [3, 3] * (m - 2 * p + rank + 1)
    sizes += [1, 2, *steady[1:]] if rank == p - 1 else steady
    sizes += [2, 3] * after + [2] * (rank + 1)
    blocks = [tuple(order[sum(sizes[:k]) : sum(sizes[: k + 1])]) for k in range(len(sizes))]
    return blocks + [(action,) for action in order[sum(sizes) :]]


def in_blocks(orders: list[list[tuple[Action, ...]]], times: dict[Kind, int]) -> int:
    """The makespan when each block is one action: what it makes is there when all of it is over."""
    ended: dict[Action, int] = {}
    free, at = [0] * len(orders), [0] * len(orders)
    while sum(at) < sum(map(len, orders)):
        for rank, blocks in enumerate(orders):
            while at[rank] < len(blocks):
                block = blocks[at[rank]]
                before = [need for action in block for need in needs(action, 2 * len(orders)) if need not in block]
                if any(need not in ended for need in before):
                    break
                free[rank] = max([free[rank], *(ended[need] for need in before)]) + sum(times[a.kind] for a in block)
                ended |= dict.fromkeys(block, free[rank])
                at[rank] += 1
    return max(free)


def test_there_is_no_formula_for_uneven_chunks_heads_and_transfers():
    schedule = make_schedule("1f1b", ranks=2, microbatches=4)
    assert published_bubble(schedule, Durations(1, 2)) is not None
    for times in (Durations([1, 2], 2), Durations(head=1), Durations(transfer=1)):
        assert published_bubble(schedule, times) is None
