"""A walk runs every slot once, in order, with what was fetched for it, and fetches nothing in vain."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.model.loop.walk import Site, loops, walk
from tests.traced import operations

GEMMA = ("local",) * 5 + ("global",)


def sites(fetches: bool) -> dict[str, Site]:
    """A site for each letter: its step notes its own number, the row and what was fetched."""

    def site(number: int, key: str) -> Site:
        def step(fetched: Any, row: jax.Array, carry: Any) -> Any:
            place, seen = carry
            return place + 1, seen.at[place].set(jnp.stack([jnp.int32(number), row, fetched if fetches else row]))

        # Something that nothing else here does, so that it can be counted.
        fetch = lambda row: jnp.round(jnp.cosh(jnp.float32(0)) * row).astype(jnp.int32) if fetches else None
        return Site(key, step, fetch)

    return {key: site(number, key) for number, key in enumerate("abc")}


def slots(letters: str, fetches: bool) -> list[tuple[Site, int]]:
    """Each letter's rows count up."""
    known, rows = sites(fetches), dict.fromkeys("abc", -1)
    found = []
    for letter in letters:
        rows[letter] += 1
        found.append((known[letter], rows[letter]))
    return found


@settings(deadline=None, max_examples=25)
@given(st.text("abc", min_size=1, max_size=14), st.booleans(), st.booleans(), st.integers(1, 3))
def test_every_slot_runs_once_in_order_with_what_was_fetched_for_it(
    letters: str, fetches: bool, reverse: bool, unroll: int
):
    runs_in_order(letters, fetches, reverse, unroll)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
def test_units_run_in_order_with_what_was_fetched_for_them(reverse: bool):
    runs_in_order("caabaabaab", True, reverse)


def runs_in_order(letters: str, fetches: bool, reverse: bool, unroll: int = 1) -> None:
    own = slots(letters, fetches)[:: -1 if reverse else 1]
    start = jnp.int32(0), jnp.full((len(own), 3), -1, jnp.int32)
    place, seen = walk(own, start, unroll)
    assert int(place) == len(own)
    wanted = [("abc".index(str(site.key)), row, row) for site, row in own]
    np.testing.assert_array_equal(seen, wanted)


@pytest.mark.parametrize("unroll", [1, 2])
@pytest.mark.parametrize("letters", ["aaaa", "aabaabaab", "aabaabaabaa", "abcabc", "cabababc"])
def test_nothing_is_fetched_in_vain(letters: str, unroll: int):
    start = jnp.int32(0), jnp.zeros((len(letters), 3), jnp.int32)
    ran = operations(lambda carry: walk(slots(letters, True), carry, unroll), start)
    assert sum(times for equation, times in ran if equation.primitive.name == "cosh") == len(letters)


def test_units_of_a_pattern_are_one_loop():
    known = {kind: sites(False)["abc"[place]] for place, kind in enumerate(("local", "global"))}
    own = [(known[kind], row) for row, kind in enumerate((GEMMA * 4) + ("local", "local"))]
    (units, rest), _ = loops(own)
    assert [(run.parts[0].key, run.times) for run in units.parts] == [("a", 5), ("b", 1)] and units.times == 4
    assert [(run.parts[0].key, run.times) for run in rest.parts] == [("a", 2)] and rest.times == 1


def test_a_turn_has_as_many_slots_as_are_asked_for_where_the_next_ones_are_fetched():
    start = jnp.int32(0), jnp.zeros((8, 3), jnp.int32)
    program = lambda fetches: jax.make_jaxpr(lambda carry: walk(slots("a" * 8, fetches), carry, 2))(start).eqns
    turns = lambda fetches: {loop.params["unroll"] for loop in program(fetches) if loop.primitive.name == "scan"}
    assert (turns(True), turns(False)) == ({2}, {1})


@pytest.mark.parametrize("unroll", [1, 2])
@pytest.mark.parametrize("letters", ["aaaaa", "aabaabaab"])
def test_what_comes_is_tied_to_what_is_there_and_both_are_used(letters: str, unroll: int):
    """The tie counts in hundreds what it has done to a row as the coming one, and in thousands as the one at hand."""
    tie = lambda coming, own: (coming + 100, own + 1000)
    own = [(site._replace(tie=tie), row) for site, row in slots(letters, True)]
    place, seen = walk(own, (jnp.int32(0), jnp.zeros((len(own), 3), jnp.int32)), unroll)
    assert int(place) == len(own)
    followed = [letter == after for letter, after in zip(letters, letters[1:] + " ", strict=True)]
    wanted = [row + 1000 * now + 100 * before
              for (_, row), now, before in zip(own, followed, [False, *followed], strict=False)]  # fmt: skip
    np.testing.assert_array_equal(seen[:, 2], wanted)
