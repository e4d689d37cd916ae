"""Runs the slots of a chunk one after the other: slots that repeat are loops, and data for the next one is prefetched.

Slots of one *site* run the same program on other rows. Neighbouring slots of one site are a `lax.scan` over their rows;
a sequence of such loops that repeats (a unit of a model's pattern) is a scan over units. While a layer runs, what the
next one needs is fetched, whatever its kind. The last turn of a loop is peeled off, so that nothing is fetched without
use.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, PyTree

from jaxpar.runtime.repeats import repeats

type Tie = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
"""`(what is fetched for the next slot, what was fetched for this one) -> both`, with an order between them."""

type Row = Int[Array, ""]


class Site(NamedTuple):
    """A program that slots run on rows of their own."""

    key: Hashable
    """Two sites are the same if their keys are equal."""
    step: Callable[[PyTree, Row, PyTree], PyTree]
    """`(what was fetched, row, carry) -> carry`."""
    fetch: Callable[[Row], PyTree]
    """`row -> arrays` that the step needs and that take time to fetch; may be empty."""
    tie: Tie | None = None
    """Loop over slots that are followed by one of the same site."""

    @property
    def fetches(self) -> bool:
        """Whether a step needs arrays that take time to fetch."""
        return bool(jax.tree.leaves(jax.eval_shape(self.fetch, jnp.int32(0))))


class Loop(NamedTuple):
    """Parts that run several times over, each time on other rows."""

    parts: tuple[Site | Loop, ...]
    times: int
    unroll: int = 1
    """The number of iterations in a turn of the loop, where something is fetched meanwhile."""

    @property
    def fetches(self) -> bool:
        """Whether one of its steps needs arrays that take time to fetch."""
        return any(part.fetches for part in self.parts)


type Part = Site | Loop

type Rows = PyTree[Int[Array, "*times"]]
"""The row of a site; for a loop, those of each of its parts, with a leading dim of times."""

type Next = tuple[Site, Row] | None
"""The slot that runs next, if there is one."""


def walk[Carry](slots: Sequence[tuple[Site, int]], carry: Carry, unroll: int = 1) -> Carry:
    """`carry` after the steps of all slots, (site, row) each, in their order.

    A loop over neighbouring slots of one site that fetches meanwhile has `unroll` of them in a turn: what was fetched
    is then in as many buffers in turn, where XLA copies it into the one of a loop's carry otherwise.
    """
    parts, rows = loops(slots, unroll)
    return _run_all(parts, rows, None, None, carry)[1]


def loops(slots: Sequence[tuple[Site, int]], unroll: int = 1) -> tuple[tuple[Loop, ...], Rows]:
    """Slots as loops over units of loops over sites, and their rows."""
    groups = [list(group) for _, group in groupby(slots, key=lambda slot: slot[0].key)]
    parts, rows = [], []
    for repeat in repeats([(group[0][0].key, len(group)) for group in groups]):
        turns = [groups[turn] for turn in repeat.turns]
        runs = tuple(Loop((group[0][0],), len(group), unroll) for group in turns[0])
        tables = tuple((_table([[row for _, row in group] for group in same]),) for same in zip(*turns, strict=True))
        parts.append(Loop(runs, repeat.times))
        rows.append(tables)
    return tuple(parts), tuple(rows)


def _table(rows: Sequence[Sequence[int]]) -> Int[Array, "times rows"]:
    """`rows` as an array, computed where they count up or down, so that a program has no constants for them."""
    (first, *_), *later = rows
    if not later and list(rows[0]) == list(range(first, first + len(rows[0]))):
        return jnp.arange(first, first + len(rows[0]))[None]
    if not later and list(rows[0]) == list(range(first, first - len(rows[0]), -1)):
        return jnp.arange(rows[0][-1], first + 1)[::-1][None]
    return jnp.array(rows, jnp.int32)


def _run_all[Carry](
    parts: Sequence[Part], rows: Sequence[Rows], fetched: PyTree, after: Next, carry: Carry
) -> tuple[PyTree, Carry]:
    """(what the slot `after` needs, carry) once all parts have run, of which the first has `fetched`."""
    following = [*(_first(part, part_rows) for part, part_rows in zip(parts[1:], rows[1:], strict=True)), after]
    for part, part_rows, then in zip(parts, rows, following, strict=True):
        fetched, carry = _run(part, part_rows, fetched, then, carry)
    return fetched, carry


def _run[Carry](part: Part, rows: Rows, fetched: PyTree, after: Next, carry: Carry) -> tuple[PyTree, Carry]:
    """(what the slot `after` needs, carry) once a part has run, whose first slot has `fetched` if that is not None."""
    if isinstance(part, Site):
        fetched = part.fetch(rows) if fetched is None else fetched
        if after is None:
            return None, part.step(fetched, rows, carry)
        site, row = after
        coming = site.fetch(row)
        if part.tie is not None and site.key == part.key:
            coming, fetched = part.tie(coming, fetched)
        return coming, part.step(fetched, rows, carry)
    turn = lambda index: jax.tree.map(lambda a: a[index], rows)
    if part.times == 1 and isinstance(part.parts[0], Loop):  # rows that are cut before cost XLA a layer's weights
        return _run_all(part.parts, turn(0), fetched, after, carry)
    if not part.fetches and (after is None or not after[0].fetches):
        body = lambda carry, rows: (_run_all(part.parts, rows, None, None, carry)[1], None)
        return None, lax.scan(body, carry, rows)[0]
    site, row = _first(part, rows)

    def ahead(state: tuple[PyTree, Carry], now: tuple[Rows, Row]) -> tuple[tuple[PyTree, Carry], None]:
        rows, following = now
        return _run_all(part.parts, rows, state[0], (site, following), state[1]), None

    state = site.fetch(row) if fetched is None else fetched, carry
    first_rows = jax.tree.leaves(rows)[0].reshape(part.times, -1)[:, 0]
    (fetched, carry), _ = lax.scan(ahead, state, (turn(slice(None, -1)), first_rows[1:]), unroll=part.unroll)
    return _run_all(part.parts, turn(-1), fetched, after, carry)


def _first(part: Part, rows: Rows) -> tuple[Site, Row]:
    """The first slot of a part."""
    while isinstance(part, Loop):
        part = part.parts[0]
    first = jax.tree.leaves(rows)[0]
    return part, first[(0,) * first.ndim]
