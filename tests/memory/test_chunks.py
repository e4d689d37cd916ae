"""Which layer groups are on the device, against trying every eviction."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.config.errors import UserError
from jaxpar.memory.chunks import ChunkPlan, Use, grid, groups_to_pin, plan_chunks, step_uses
from tests.sentences import refused

MIB = 2**20


def fewest_loads(order: tuple[int, ...], slots: int) -> int:
    """Least number of loads for `order` from an empty device of `slots` equal groups, each loaded one use ahead."""

    @cache
    def least(place: int, resident: frozenset[int]) -> int:
        if place == len(order) - 1:
            return 0
        now, coming = order[place], order[place + 1]
        if coming in resident:
            return least(place + 1, resident)
        kept = resident if len(resident) < slots else None
        after = [kept] if kept is not None else [resident - {gone} for gone in resident - {now}]
        return 1 + min(least(place + 1, rest | {coming}) for rest in after)

    return least(0, frozenset({order[0]}))


def check(plan: ChunkPlan) -> None:
    """The moves can be carried out, repeat, and keep within the budget."""
    resident = plan.moves[-1].resident
    for move in plan.moves:
        assert move.use.group in resident
        assert (move.load is not None) == bool(move.resident - resident)
        assert set(move.written) <= set(move.evict) <= resident
        assert move.use.group not in move.evict
        resident = (resident - set(move.evict)) | ({move.load} if move.load is not None else set())
        assert resident == move.resident
    assert plan.peak_bytes <= plan.budget


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=7).filter(lambda groups: len(set(groups)) > 1), st.integers(2, 4)
)
def test_as_few_groups_are_loaded_as_any_plan_can(order: list[int], slots: int):
    """A step that repeats: over several, furthest next use loads no more than the best plan that knows them all."""
    groups = {group: place for place, group in enumerate(dict.fromkeys(order))}
    uses = [Use("forward", 0, groups[group]) for group in order]
    plan = plan_chunks([7] * len(groups), uses, 7 * slots + 3)
    check(plan)
    repeats = 4
    best = lambda n: fewest_loads(tuple(use.group for use in uses) * n, slots)
    ahead = best(repeats + plan.steps) - best(repeats)
    assert plan.loads * plan.steps == ahead


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=6),
    st.integers(0, 20),
    st.integers(1, 2),
    st.sampled_from(["furthest", "least_recent"]),
)
def test_plans_of_unequal_groups_can_be_carried_out(sizes: list[int], room: int, microbatches: int, policy):
    budget = max(a + b for a, b in combinations(sizes, 2)) + room
    plan = plan_chunks(sizes, step_uses(len(sizes), microbatches), budget, policy=policy)
    check(plan)
    if sum(sizes) <= budget:
        assert (plan.loads, plan.bytes_in, plan.bytes_out) == (0, 0, 0)
        assert plan.pinned == tuple(range(len(sizes)))


def test_the_order_of_uses_of_a_step():
    uses = step_uses(2, microbatches=2)
    said = [f"{use.phase[0]}{use.microbatch}{use.group}" for use in uses]
    assert said == ["f00", "f01", "b01", "b00", "f10", "f11", "b11", "u11", "b10", "u10"]
    assert [use.group for use in step_uses(3, phases=("update",))] == [2, 1, 0]


def test_the_furthest_is_evicted_where_least_recent_use_would_move_everything():
    """Eight groups, room for five. A sweep there and back suits both; in a cycle the least recent comes next."""
    for policy in ("furthest", "least_recent"):
        there_and_back = plan_chunks([10] * 8, step_uses(8), 50, policy=policy)
        assert (there_and_back.loads, there_and_back.bytes_in, there_and_back.pinned) == (6, 60, (3, 4))
    cycle = step_uses(8, phases=("update",))
    assert plan_chunks([10] * 8, cycle, 50, policy="least_recent").loads == 8
    assert plan_chunks([10] * 8, cycle, 50).loads == 4
    assert plan_chunks([10] * 8, cycle, 50, pinned=groups_to_pin([10] * 8, 50)).loads == 5


def test_only_what_was_updated_is_copied_back():
    plan = plan_chunks([10] * 6, step_uses(6, phases=("forward", "backward")), 30)
    assert plan.bytes_in > 0
    assert plan.bytes_out == 0
    assert 0 < plan_chunks([10] * 6, step_uses(6), 30).bytes_out <= 60


@pytest.mark.parametrize("budget", range(20, 80, 5))
def test_pinned_groups_leave_room_for_two_that_stream(budget: int):
    pinned = groups_to_pin([10] * 6, budget)
    plan = plan_chunks([10] * 6, step_uses(6, phases=("update",)), budget, pinned=pinned)
    check(plan)
    assert set(pinned) <= set(plan.pinned)
    assert len(pinned) == (6 if budget >= 60 else budget // 10 - 2)
    assert plan.loads <= 6 - len(pinned)


def test_groups_that_cannot_be_together_are_refused():
    with refused("groups", "17.0 MiB", "16.0 MiB"):
        plan_chunks([8 * MIB, 9 * MIB, 3 * MIB], step_uses(3), 16 * MIB)
    with pytest.raises(UserError, match="must be on the device together"):
        groups_to_pin([10] * 4, 19)


def test_the_grid_shows_where_groups_are():
    plan = plan_chunks([1] * 3, step_uses(3, phases=("forward", "backward")), 2)
    assert grid(plan) == "    fffbbb\n  0 #...+#\n  1 =#==#=\n  2 .+##..\n"
