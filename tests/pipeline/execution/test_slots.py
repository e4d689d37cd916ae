"""Slots: no two values that live at once share one, and there are as few as ever live at once."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.pipeline.execution.make_program import Lifetime, assign_slots, free_slot, slot_count

lifetimes = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=24).map(
    lambda lives: {name: Lifetime(first, first + more) for name, (first, more) in enumerate(lives)}
)


def alive(lives: dict[int, Lifetime], tick: int) -> list[int]:
    return [name for name, life in lives.items() if life.first <= tick <= life.last]


@settings(deadline=None, max_examples=200)
@given(lifetimes)
def test_no_two_values_that_live_at_once_share_a_slot(lives: dict[int, Lifetime]):
    slots = assign_slots(lives)
    assert slots.keys() == lives.keys()
    for a, b in itertools.combinations(lives, 2):
        if lives[a].first <= lives[b].last and lives[b].first <= lives[a].last:
            assert slots[a] != slots[b]


@settings(deadline=None, max_examples=200)
@given(lifetimes)
def test_there_are_as_few_slots_as_values_ever_live_at_once(lives: dict[int, Lifetime]):
    most = max((len(alive(lives, tick)) for tick in range(30)), default=0)
    assert slot_count(assign_slots(lives).values()) == most


@settings(deadline=None, max_examples=200)
@given(lifetimes, st.integers(0, 30))
def test_a_free_slot_holds_nothing_in_that_tick_and_there_is_one_unless_all_are_used(
    lives: dict[int, Lifetime], tick: int
):
    slots = assign_slots(lives)
    count = slot_count(slots.values())
    used = {slots[name] for name in alive(lives, tick)}
    slot = free_slot(slots, lives, tick, count)
    assert (slot is None) == (len(used) == count)
    assert slot is None or (slot not in used and 0 <= slot < count)


def test_a_slot_is_free_in_the_tick_after_the_last():
    """What is read in a tick is not yet overwritten in it: F of the same tick comes before B."""
    assert assign_slots({"a": Lifetime(0, 2), "b": Lifetime(2, 3), "c": Lifetime(3, 4)}) == {"a": 0, "b": 1, "c": 0}
