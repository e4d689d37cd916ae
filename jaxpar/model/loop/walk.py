"""Runs the slots of a chunk one after the other: slots that repeat are loops, and data for the next one is prefetched.

Slots of one *site* run the same program on other rows. Neighbouring slots of one site are a `lax.scan` over their rows;
a sequence of such runs that repeats (a unit of a model's pattern) is a scan over units. While a layer runs, what the
next one needs is fetched, whatever its kind; one layer, and of repeating units one unit, is peeled off so that nothing
is fetched without use.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, PyTree

type Tie = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
"""`(what is fetched for the next slot, what was fetched for this one) -> both`, with an order between them."""


class Site(NamedTuple):
    """What slots that run the same program have in common."""

    key: Hashable
    """Two sites are the same if their keys are equal."""
    step: Callable[[PyTree, jax.Array, PyTree], PyTree]
    """`(what was fetched, row, carry) -> carry`."""
    fetch: Callable[[jax.Array], PyTree]
    """`row -> arrays` that the step needs and that take time to fetch; may be empty."""
    tie: Tie | None = None


class Run(NamedTuple):
    """Neighbouring slots of one site."""

    site: Site
    rows: tuple[int, ...]

    @property
    def like(self) -> tuple[Hashable, int]:
        """What runs have in common if they can be one run of a loop."""
        return self.site.key, len(self.rows)


class Repeat(NamedTuple):
    """Runs that repeat, with other rows."""

    runs: tuple[Run, ...]
    """The runs of the first repetition."""
    rows: tuple[Int[Array, "times rows"], ...]
    """Of each run."""

    @property
    def times(self) -> int:
        """Number of repetitions."""
        return len(self.rows[0])


def walk[Carry](slots: Sequence[tuple[Site, int]], carry: Carry, unroll: int = 1) -> Carry:
    """`carry` after the steps of all slots, (site, row) each, in their order.

    A loop over neighbouring slots of one site that fetches meanwhile has `unroll` of them in a turn: what was fetched
    is then in as many buffers in turn, where XLA copies it into the one of a loop's carry otherwise.
    """
    repeats = repeating(slots)
    fetched = None
    for own, following in zip(repeats, [*repeats[1:], None], strict=True):
        after = None if following is None else _first_fetch(following)
        fetched, carry = _repeat(own, fetched, after, carry, unroll)
    return carry


def repeating(slots: Sequence[tuple[Site, int]]) -> list[Repeat]:
    """Slots as runs, and repeated runs as one: from each place on, the repetition that saves most."""
    runs = [
        Run(own[0][0], tuple(row for _, row in own))
        for own in (list(group) for _, group in groupby(slots, key=lambda slot: slot[0].key))
    ]
    likes = [run.like for run in runs]
    found: list[Repeat] = []
    place = 0
    while place < len(runs):
        period, times = max(
            ((period, _times(likes, place, period)) for period in range(1, (len(runs) - place) // 2 + 1)),
            key=lambda found: (found[1] - 1) * found[0],
            default=(1, 1),
        )
        period = period if times > 1 else 1
        each = [runs[place + turn * period : place + (turn + 1) * period] for turn in range(times)]
        found.append(Repeat(tuple(each[0]), tuple(_table([own[run].rows for own in each]) for run in range(period))))
        place += period * times
    return found


def _table(rows: list[tuple[int, ...]]) -> Int[Array, "times rows"]:
    """`rows` as an array, computed where they count up or down, so that a program has no constants for them."""
    first, later = rows[0][0], rows[1:]
    if not later and rows[0] == tuple(range(first, first + len(rows[0]))):
        return jnp.arange(first, first + len(rows[0]))[None]
    if not later and rows[0] == tuple(range(first, first - len(rows[0]), -1)):
        return jnp.arange(rows[0][-1], first + 1)[::-1][None]
    return jnp.array(rows, jnp.int32)


def _times(likes: Sequence[Hashable], place: int, period: int) -> int:
    """How often the `period` entries from `place` on repeat consecutively."""
    unit, times = likes[place : place + period], 1
    while likes[place + times * period : place + (times + 1) * period] == unit:
        times += 1
    return times


def _repeat[Carry](
    repeat: Repeat, fetched: PyTree, after: Callable[[], PyTree] | None, carry: Carry, unroll: int
) -> tuple[PyTree, Carry]:
    """(what `after` fetches, carry) after all repetitions of the runs; data of the first slot has been fetched."""
    if repeat.times == 1:
        return _unit(repeat.runs, [rows[0] for rows in repeat.rows], fetched, after, carry, unroll)
    first = repeat.runs[0].site

    if not _has_arrays(after) and not any(_fetches(run) for run in repeat.runs):

        def once(carry: Carry, rows: list[jax.Array]) -> tuple[Carry, None]:
            return _unit(repeat.runs, rows, None, None, carry, unroll)[1], None

        return None, lax.scan(once, carry, list(repeat.rows))[0]

    def turn(state: tuple[PyTree, Carry], now: tuple[list[jax.Array], jax.Array]) -> tuple[tuple[PyTree, Carry], None]:
        fetched, carry = state
        rows, following = now
        return _unit(repeat.runs, rows, fetched, lambda: first.fetch(following), carry, unroll), None

    fetched = first.fetch(repeat.rows[0][0, 0]) if fetched is None else fetched
    turns = [rows[:-1] for rows in repeat.rows], repeat.rows[0][1:, 0]
    (fetched, carry), _ = lax.scan(turn, (fetched, carry), turns)
    return _unit(repeat.runs, [rows[-1] for rows in repeat.rows], fetched, after, carry, unroll)


def _unit[Carry](
    runs: Sequence[Run],
    rows: Sequence[jax.Array],
    fetched: PyTree,
    after: Callable[[], PyTree] | None,
    carry: Carry,
    unroll: int,
) -> tuple[PyTree, Carry]:
    """(what `after` fetches, carry) once each of `runs` has run its `rows`, of which the first has `fetched`."""
    for place, (run, own) in enumerate(zip(runs, rows, strict=True)):
        last = place + 1 == len(runs)
        then = after if last else (lambda place=place: runs[place + 1].site.fetch(rows[place + 1][0]))
        fetched, carry = _run(run.site, own, fetched, then, carry, unroll)
    return fetched, carry


def _run[Carry](
    site: Site, rows: jax.Array, fetched: PyTree, after: Callable[[], PyTree] | None, carry: Carry, unroll: int
) -> tuple[PyTree, Carry]:
    """(what `after` fetches, carry) once the slots of a run have run, of which the first has `fetched`."""
    if not _has_arrays(lambda: site.fetch(rows[0])) and not _has_arrays(after):
        body = lambda carry, row: (site.step(site.fetch(row), row, carry), None)
        return None, lax.scan(body, carry, rows)[0]

    def ahead(state: tuple[PyTree, Carry], pair: tuple[jax.Array, jax.Array]) -> tuple[tuple[PyTree, Carry], None]:
        fetched, carry = state
        row, following = pair
        coming = site.fetch(following)
        if site.tie is not None:
            coming, fetched = site.tie(coming, fetched)
        return (coming, site.step(fetched, row, carry)), None

    fetched = site.fetch(rows[0]) if fetched is None else fetched
    (fetched, carry), _ = lax.scan(ahead, (fetched, carry), (rows[:-1], rows[1:]), unroll=unroll)
    coming = None if after is None else after()
    return coming, site.step(fetched, rows[-1], carry)


def _first_fetch(repeat: Repeat) -> Callable[[], PyTree]:
    return lambda: repeat.runs[0].site.fetch(repeat.rows[0][0, 0])


def _fetches(run: Run) -> bool:
    return _has_arrays(lambda: run.site.fetch(jnp.int32(run.rows[0])))


def _has_arrays(function: Callable[[], PyTree] | None) -> bool:
    """Whether there is a function and its result has arrays."""
    return function is not None and bool(jax.tree.leaves(jax.eval_shape(function)))
