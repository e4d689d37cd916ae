"""Decisions about all tokens of a microbatch at once. Each rank makes them from the same numbers, so they need no
exchange but that of the numbers themselves (`TokenOrder.gather`), and none of them has a derivative."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxpar.layers.experts.routing import NO_EXPERT
from pallas_kernels.varying import vary_alike

STEPS = 256
"""A bid raises a price by at least this part of the spread of the scores, so the mean score of an auction is less than
that below the best one."""
ROUNDS = 2048
"""Rounds of an auction at most. Tokens that have no expert by then take free places in order."""


class _Auction(NamedTuple):
    owner: Int[Array, " tokens"]
    """The expert that has accepted each token's bid, or as many as there are."""
    bids: Float[Array, " tokens"]
    prices: Float[Array, " experts"]
    rounds: Int[Array, ""]


def balanced(scores: Float[Array, "tokens experts"], valid: Bool[Array, " tokens"]) -> Int[Array, " tokens"]:
    """The expert of each token such that the sum of scores is (almost) the largest with which no expert has more than
    an even share of the tokens that count; `NO_EXPERT` of those that do not.

    It is Bertsekas's auction in the form for similar objects (Annals of Operations Research 20, 1989): all tokens
    without a place bid at once for their best expert, by how much they prefer it to the second best; an expert keeps
    the highest bids, as many as it has places, and its price is the lowest of them.
    """
    tokens, experts = scores.shape
    if experts == 1:
        return jnp.where(valid, 0, NO_EXPERT)
    scores = _rounded(scores)
    room = -(-valid.sum() // experts)
    spread = jnp.max(jnp.where(valid[:, None], scores, -jnp.inf)) - jnp.min(jnp.where(valid[:, None], scores, jnp.inf))
    step = jnp.where(spread > 0, spread, 1.0) / STEPS

    def alike(state: _Auction) -> _Auction:
        return vary_alike((state, scores))[0]

    def waits(state: _Auction) -> Bool[Array, " tokens"]:
        return valid & (state.owner == experts)

    def bid(state: _Auction) -> _Auction:
        values, best = lax.top_k(scores - state.prices, 2)
        new = state.prices[best[:, 0]] + values[:, 0] - values[:, 1] + step
        owner = jnp.where(waits(state), best[:, 0], state.owner)
        bids = jnp.where(waits(state), new, state.bids)
        position, bidders = _places(owner, -bids, experts)
        accepted = position < room
        lowest = jnp.full(experts, jnp.inf).at[owner].min(jnp.where(accepted, bids, jnp.inf), mode="drop")
        prices = jnp.where(bidders >= room, lowest, 0.0)
        return alike(_Auction(jnp.where(accepted, owner, experts), bids, prices, state.rounds + 1))

    start = _Auction(jnp.full(tokens, experts), jnp.zeros(tokens), jnp.zeros(experts), jnp.int32(0))
    auction = lax.while_loop(lambda state: waits(state).any() & (state.rounds < ROUNDS), bid, alike(start))
    free = room - jnp.bincount(auction.owner, length=experts)
    late = jnp.searchsorted(jnp.cumsum(free), jnp.cumsum(waits(auction)) - 1, side="right")
    return jnp.where(waits(auction), late, jnp.where(valid, auction.owner, NO_EXPERT)).astype(jnp.int32)


def chosen_by_experts(
    scores: Float[Array, "tokens experts"], valid: Bool[Array, " tokens"], per_token: int
) -> Bool[Array, "tokens experts"]:
    """Whether a token is among the best of each expert, which takes `per_token / experts` of those that count; of equal
    scores the first."""
    each = per_token * valid.sum() // scores.shape[1]
    order = jnp.argsort(jnp.where(valid[:, None], -_rounded(scores), jnp.inf), axis=0, stable=True)
    return (jnp.argsort(order, axis=0) < each) & valid[:, None]


def within_capacity(
    indices: Int[Array, "tokens chosen"], valid: Bool[Array, " tokens"], experts: int, factor: float
) -> Bool[Array, "tokens chosen"]:
    """Whether each assignment of a valid token is among the first `factor` times an even share of its expert's,
    in the order of the tokens."""
    real = valid[:, None] & (indices != NO_EXPERT)
    room = jnp.ceil(factor * valid.sum() * indices.shape[1] / experts)
    position, _ = _places(jnp.where(real, indices, experts).ravel(), None, experts)
    return real & (position.reshape(indices.shape) < room)


def _rounded(scores: Float[Array, "tokens experts"]) -> Float[Array, "tokens experts"]:
    """To 12 bits. Tokens with the same context have the same score, but for roundings that depend on the layout; so
    they stay equal, and their order decides."""
    return lax.reduce_precision(scores, exponent_bits=8, mantissa_bits=12)


def _places(
    owner: Int[Array, " items"], keys: Float[Array, " items"] | None, experts: int
) -> tuple[Int[Array, " items"], Int[Array, " experts"]]:
    """(the place of each item among those of its expert, by `keys` and then in order; how many each expert has). An
    owner of `experts` stands for none."""
    by_key = jnp.arange(len(owner)) if keys is None else jnp.argsort(keys, stable=True)
    order = by_key[jnp.argsort(owner[by_key], stable=True)]
    rank = jnp.argsort(order)
    sizes = jnp.bincount(owner, length=experts + 1)
    starts = jnp.cumsum(sizes) - sizes
    position = jnp.where(owner < experts, rank - starts[owner], len(owner))
    return position, sizes[:experts]
