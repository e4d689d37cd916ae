"""Rows to other places and back, and sorted lists of assignments of tokens to experts: pure functions of indices.

Rows move by gathers in both directions: `take` has the source of each row of the destination, and `back` the
destinations of each source; -1 is none. Both come from one sort, so that no direction needs a scatter.

There are two orders. For the exchange a list is what one rank gets, in the order of tokens: a token whose experts live
on one rank is next to itself, and is sent once. For the products a list has the order of the experts.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxpar.layers.experts.routing import NO_EXPERT

type Take = Int[Array, " places"]
type Back = Int[Array, "sources copies"]


@jax.custom_vjp
def spread(x: Float[Array, "sources width"], take: Take, back: Back) -> Float[Array, "places width"]:
    """`x[take]`, and 0 where `take` is -1."""
    del back
    return _rows(x, take)


@jax.custom_vjp
def collect(y: Float[Array, "places width"], take: Take, back: Back) -> Float[Array, "sources width"]:
    """The sum of `y[back]` over the copies of each source, in float32 and in their order."""
    del take
    return _sums(y, back)


spread.defvjp(
    lambda x, take, back: (_rows(x, take), (back,)),
    lambda saved, dy: (_sums(dy, *saved), None, None),
)
collect.defvjp(
    lambda y, take, back: (_sums(y, back), (take,)),
    lambda saved, dx: (_rows(dx, *saved), None, None),
)


def _rows(x: jax.Array, take: Take) -> jax.Array:
    there = (take >= 0).reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(there, x.at[jnp.maximum(take, 0)].get(mode="promise_in_bounds"), 0)


def _sums(y: jax.Array, back: Back) -> jax.Array:
    total = jnp.zeros((), jnp.float32)
    for copy in range(back.shape[1]):
        total = total + _rows(y, back[:, copy]).astype(jnp.float32)
    return total.astype(y.dtype)


def expert_of_row(group_sizes: Int[Array, " groups"], rows: int) -> Float[Array, "rows groups"]:
    """1 at the group of each row, which is 0 after the last group."""
    stops = jnp.cumsum(group_sizes)
    places = jnp.arange(rows)[:, None]
    return ((places >= stops - group_sizes) & (places < stops)).astype(jnp.float32)


def rows_of_experts(of_row: Float[Array, "rows groups"], vectors: Float[Array, "groups n"]) -> Float[Array, "rows n"]:
    """The vector of each row's group, as a product, so that the derivative has no scatter."""
    return jnp.matmul(of_row, vectors.astype(jnp.float32), precision="highest").astype(vectors.dtype)


NONE = -1


class Lists(NamedTuple):
    """Assignments in lists, sorted."""

    order: Int[Array, " assignments"]
    """Assignments list by list; those that do not count are last."""
    list: Int[Array, "tokens chosen"]
    """The list of each assignment; `NONE` of those that do not count."""
    position: Int[Array, "tokens chosen"]
    """Its position in the list."""
    token: Int[Array, "tokens chosen"]
    """The position of its token in the list; in lists by expert, its own."""
    heads: Int[Array, " assignments"]
    """Position in `order` of the first assignment of each token of a list, list by list; in lists by expert, where
    each assignment stands."""
    expert: Int[Array, "tokens chosen"]
    """The index of its expert on the expert's rank."""
    lengths: Int[Array, " lists"]
    """Assignments of each list."""
    tokens: Int[Array, " lists"]
    """Tokens of each list."""
    first: Int[Array, " lists"]
    """Assignments of each list that the first round takes."""


class Window(NamedTuple):
    """The part of each list that a round takes: a limited number of assignments and rows."""

    tokens: Int[Array, " rows"]
    """The token of each row that is sent, or `NONE`."""
    back: Int[Array, "tokens chosen"]
    """The row of each token for the first of its assignments in a list, or `NONE`."""
    assignments: Int[Array, " slots"]
    """The assignment in each slot, or `NONE`."""
    slots: Int[Array, "assignments 1"]
    """The slot of each assignment, or `NONE`."""
    expert: Int[Array, " slots"]
    """The index of the expert of each slot on its rank, or `NONE`."""
    row: Int[Array, " slots"]
    """The row of each slot in its list."""


def lists_by_rank(
    experts: Int[Array, "tokens chosen"], valid: Bool[Array, " tokens"], ranks: int, each: int, room: int, rows: int
) -> Lists:
    """A list for each of `ranks`, which has `each` experts, in the order of tokens. The first round takes `room`
    assignments of a list at most, of `rows` tokens at most."""
    rank = jnp.where(valid[:, None] & (experts != NO_EXPERT), experts // each, ranks)
    key = rank.ravel()
    order = jnp.argsort(key, stable=True)
    here = rank[:, :, None] == jnp.arange(ranks)
    assigned = here.sum(axis=1)
    before, tokens_before = (jnp.cumsum(x, axis=0) - x for x in (assigned, (assigned > 0).astype(assigned.dtype)))
    valid_rank = jnp.minimum(rank, ranks - 1)
    within = jnp.tril(rank[:, :, None] == rank[:, None, :], -1).sum(axis=2)
    position = jnp.take_along_axis(before, valid_rank, axis=1) + within
    token = jnp.take_along_axis(tokens_before, valid_rank, axis=1)
    # Assignments that do not count stand last and are the first of nothing.
    leads = (within == 0) & (rank < ranks)
    heads = jnp.argsort(~leads.ravel()[order], stable=True)
    lengths = assigned.sum(axis=0)
    first = jnp.minimum(room, jnp.sum(jnp.where(tokens_before < rows, assigned, 0), axis=0))
    destination = jnp.where(rank < ranks, rank, NONE)
    return Lists(order, destination, position, token, heads, experts % each, lengths, (assigned > 0).sum(axis=0), first)


def window_of(lists: Lists, round: int | jax.Array, room: int, rows: int) -> Window:
    """The assignments of round `round`: the first one `Lists.first` of each list, others `rows` assignments.

    `room` and `rows` are those of this round.
    """
    start = jnp.where(round == 0, 0, lists.first + (round - 1) * rows)
    end = jnp.minimum(jnp.where(round == 0, lists.first, start + rows), lists.lengths)
    begins = jnp.cumsum(lists.lengths) - lists.lengths
    last, chosen = lists.order.size - 1, lists.list.shape[1]
    # Slots.
    at = start[:, None] + jnp.arange(room)
    inside = at < end[:, None]
    assignments = jnp.where(inside, lists.order[jnp.minimum(begins[:, None] + at, last)], NONE)
    index = jnp.maximum(lists.list, 0)
    taken = (lists.list >= 0) & (lists.position >= start[index]) & (lists.position < end[index])
    slots = jnp.where(taken, index * room + lists.position - start[index], NONE)
    # Rows: one for each token of a list. A list may have been cut within a token, whose row is then sent again.
    skipped = lists.token.ravel()[lists.order[jnp.minimum(begins + start, last)]]
    row = lists.token - skipped[index]
    heads = jnp.cumsum(lists.tokens) - lists.tokens + skipped
    head = lists.heads[jnp.minimum(heads[:, None] + jnp.arange(rows), last)]
    head = jnp.maximum(head, (begins + start)[:, None])
    among = (skipped[:, None] + jnp.arange(rows) < lists.tokens[:, None]) & (head < (begins + end)[:, None])
    tokens = jnp.where(among, lists.order[jnp.minimum(head, last)] // chosen, NONE)
    leads = taken & ((lists.position == start[index]) | ~_repeats(lists.list))
    back = jnp.where(leads, index * rows + row, NONE)
    pick = lambda values: jnp.where(inside, values.ravel()[jnp.maximum(assignments, 0)], NONE)
    return Window(
        tokens.ravel(), back, assignments.ravel(), slots.reshape(-1, 1), pick(lists.expert).ravel(), pick(row).ravel()
    )


def rounds_of(lists: Lists, rows: int) -> Int[Array, ""]:
    """Rounds that the lists need, one at least."""
    return jnp.max(1 + -(-(lists.lengths - lists.first) // rows))


class Places(NamedTuple):
    """Order in which received rows are multiplied."""

    take: Int[Array, " slots"]
    """The received row of each row of a product, or `NONE`."""
    back: Int[Array, "rows copies"]
    """The rows of the products of each received row, or `NONE`."""
    weights: Float[Array, " slots"]
    """The weight of each row of a product."""
    sizes: Int[Array, " experts"]
    """Rows of each expert."""


def sort_by_expert(
    expert: Int[Array, "sources slots"], row: Int[Array, "sources slots"], weights: Float[Array, "sources slots"],
    rows: int, each: int, copies: int,
) -> Places:  # fmt: skip
    """Slots of all sources in the order of `each` experts; a source has sent `rows` rows, each for at most `copies`
    of them."""
    sources, room = expert.shape
    key = jnp.where(expert >= 0, expert, each).ravel()
    order = jnp.argsort(key, stable=True)
    inverse = jnp.argsort(order)
    there = key < each
    source = jnp.arange(sources)[:, None]
    take = jnp.where(there, (source * rows + row).ravel(), NONE)[order]
    # Slots of a row are neighbours. Its first one is where the row differs from that of the slot before.
    leads = (expert >= 0) & (row != jnp.pad(row, [(0, 0), (1, 0)], constant_values=NONE)[:, :-1])
    heads = jnp.argsort(~leads, axis=1, stable=True)[:, :rows]
    sent = jnp.arange(rows) < leads.sum(axis=1, keepdims=True)
    at = heads[:, :, None] + jnp.arange(copies)
    inside = (at < room) & sent[:, :, None]
    slot = source[:, :, None] * room + jnp.minimum(at, room - 1)
    same = inside & there[slot] & (row.ravel()[slot] == jnp.arange(rows)[:, None])
    back = jnp.where(same, inverse[slot], NONE).reshape(sources * rows, copies)
    slot_weights = spread(
        weights.reshape(-1, 1), jnp.where(there[order], order, NONE), jnp.where(there, inverse, NONE)[:, None]
    )
    sizes = jnp.sum(key[:, None] == jnp.arange(each), axis=0)
    return Places(take, back, slot_weights[:, 0], sizes)


def sort_tokens_by_expert(window: Window, gates: Float[Array, "tokens chosen"], each: int) -> Places:
    """The only list of a window in the order of `each` experts, on the rank that has the tokens: these are the sources
    of the places."""
    at = jnp.maximum(window.slots[:, 0], 0)
    key = jnp.where(window.slots[:, 0] >= 0, window.expert[at], each)
    order = jnp.argsort(key, stable=True)
    position = jnp.where(key < each, jnp.argsort(order), NONE)
    taken = jnp.where(key[order] < each, order, NONE)[: window.assignments.size]
    weights = spread(gates.reshape(-1, 1), taken, position[:, None])[:, 0]
    sizes = jnp.sum(key[:, None] == jnp.arange(each), axis=0)
    return Places(taken // gates.shape[1], position.reshape(gates.shape), weights, sizes)


def places_of_list(
    window: Window,
    gates: Float[Array, "slices tokens chosen"],
    index: Int[Array, ""],
    lists: int,
    rows: int,
    each: int,
) -> Places:
    """Where one list is multiplied on the rank that has its tokens, of all slices of a stack together.

    Args:
        window: The assignments that the first round takes, stacked by slice.
        gates: Weights of the choices.
        index: The list, of `lists`.
        lists: Lists of a window.
        rows: Rows of a list in a round.
        each: Experts of the list's rank.

    Returns:
        Places whose sources are the tokens, slice by slice, and not rows.
    """
    slices, tokens, chosen = gates.shape

    def slice_rows(window: Window, gates: jax.Array) -> tuple[jax.Array, ...]:
        weights = spread(gates.reshape(-1, 1), window.assignments, window.slots)[:, 0]
        values = (x.reshape(lists, -1)[index] for x in (window.expert, window.row, weights, window.tokens))
        row_of_token = jnp.where(window.back // rows == index, window.back % rows, NONE).max(axis=1)
        return *values, row_of_token

    expert, row, weights, token, row_of = jax.vmap(slice_rows)(window, gates)
    sorted_rows = sort_by_expert(expert, row, weights, rows, each, min(chosen, each))
    slice_of = jnp.arange(slices)[:, None]
    sources = jnp.where(token >= 0, slice_of * tokens + token, NONE).ravel()
    places = jnp.where(row_of >= 0, slice_of * rows + row_of, NONE).reshape(-1, 1)
    take = jnp.where(sorted_rows.take >= 0, sources[sorted_rows.take], NONE)
    return sorted_rows._replace(take=take, back=jnp.where(places >= 0, sorted_rows.back[places[:, 0]], NONE))


def without_list(window: Window, index: Int[Array, ""], lists: int, rows: int) -> Window:
    """The window of a slice without the assignments of one list, whose room stays empty."""

    def others(x: jax.Array) -> jax.Array:
        return jnp.where(jnp.arange(lists)[:, None] == index, NONE, x.reshape(lists, -1)).ravel()

    back = jnp.where(window.back // rows == index, NONE, window.back)
    return window._replace(tokens=others(window.tokens), back=back, expert=others(window.expert))


def _repeats(list: Int[Array, "tokens chosen"]) -> Bool[Array, "tokens chosen"]:
    """Whether an earlier assignment of the token is in the same list."""
    return jnp.tril(list[:, :, None] == list[:, None, :], -1).any(axis=2)
