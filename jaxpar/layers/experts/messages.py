"""Closed formulas of the room and the messages of a round of each exchange of tokens: what a plan compares, a step is
timed by, and `inspect` checks.

Sizes are rows for each token of a rank (a tensor rank: those of its part of the sequence).
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod
from typing import Literal, NamedTuple

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.layers.experts.clusters import exchanged_experts
from jaxpar.layers.experts.routers import groups_of
from jaxpar.mesh.quantized.blocks import row_bytes

FURTHER_ROUNDS = "further_rounds"
"""The scope of the loop over all rounds but the first, which in a balanced step runs no times."""


class Message(NamedTuple):
    """One collective on the way of the tokens to their experts. The way back has its mirror image."""

    name: str
    """Name of the function in `mesh.collectives`."""
    kind: Literal["exchange", "gather"]
    """An all-to-all, or an all-gather, whose mirror image is a reduce-scatter."""
    axes: tuple[str, ...]
    """Axes of the ranks that take part, the outermost first."""
    ranks: int
    rows: float
    """Rows that a rank holds whole: what it splits among the others, or has in the end."""

    @property
    def sent(self) -> float:
        """Rows that a rank sends."""
        return self.rows * (self.ranks - 1) / self.ranks


def _all_to_all(experts: ExpertsConfig, capacity: float, expert: int, tensor: int) -> tuple[Message, ...]:
    rows = rows_for_ranks(experts, capacity, expert)
    return (
        Message("exchange_tokens", "exchange", ("expert",), expert, rows),
        Message("gather_sequence", "gather", ("tensor",), tensor, rows * tensor),
    )


def _all_gather(experts: ExpertsConfig, capacity: float, expert: int, tensor: int) -> tuple[Message, ...]:
    del capacity  # all rows go everywhere
    ranks = expert * tensor
    return (Message("gather_tokens", "gather", ("expert", "tensor"), ranks, ranks * rows_to_send(experts)),)


MESSAGES: dict[str, Callable[[ExpertsConfig, float, int, int], tuple[Message, ...]]] = {
    "all_to_all": _all_to_all, "hierarchical": _all_to_all, "all_gather": _all_gather,
}  # fmt: skip
"""Functions by `parallel.experts.exchange`: (experts, capacity, expert ranks, tensor ranks) -> one way of the rows, of
those to other ranks. `PLACE_BYTES` of each choice go ahead of the rows. In two levels the rows are counted once."""


def messages_of(
    exchange: str, experts: ExpertsConfig, capacity: float, expert: int, tensor: int
) -> tuple[Message, ...]:
    """The messages of an exchange that send something."""
    return tuple(one for one in MESSAGES[exchange](experts, capacity, expert, tensor) if one.ranks > 1)


def rows_sent(exchange: str, experts: ExpertsConfig, capacity: float, expert: int, tensor: int) -> float:
    """Rows that a rank sends one way."""
    return sum(one.sent for one in messages_of(exchange, experts, capacity, expert, tensor))


def row_bytes_of_ways(embed: int, item: int, dtype: str | None) -> int:
    """Bytes of a row on its way to an expert, where it may be in codes, of its result on the way back, and of the
    gradients of both, all in numbers of `item` bytes."""
    return (embed * item if dtype is None else row_bytes(embed, dtype)) + 3 * embed * item


def exchange_of(asked: str, experts: ExpertsConfig, capacity: float, expert: int, tensor: int) -> tuple[str, str]:
    """Returns the algorithm of the exchange, and the reason."""
    each, all_ = (rows_sent(name, experts, capacity, expert, tensor) for name in ("all_to_all", "all_gather"))
    sent = f"of each token a rank sends {each:.3g} rows by all_to_all, {all_:.3g} by all_gather"
    if asked != "auto":
        return asked, f"asked for; {sent}"
    return ("all_gather" if all_ <= each else "all_to_all"), sent


PLACE_BYTES = 8
"""The values that travel with each assignment: its weight, and its expert and row."""


ALIGN = 8
"""Room is a multiple of this, because the TMA copies of the grouped matmuls for Hopper have tiles of 8 rows."""


def room_of(assignments: int, lists: int, capacity: float) -> int:
    """Assignments that a round has room for in each list, of so many in all: all of them at most, rounded up to
    `ALIGN`."""
    return _aligned(min(assignments, ceil(capacity * assignments / lists)) if lists > 1 else assignments)


def _aligned(rows: int) -> int:
    return -(-rows // ALIGN) * ALIGN


def ranks_per_token(experts: ExpertsConfig, ranks: int) -> float:
    """Ranks that have one of a token's experts, on average over routers that choose all alike."""
    count, per_rank = experts.count, experts.count // ranks
    groups, some = groups_of(experts)
    if some < groups and ranks % groups == 0:
        ranks = ranks * some // groups
        count = per_rank * ranks
    none = prod(max(0, count - per_rank - i) / (count - i) for i in range(experts.per_token))
    return ranks * (1 - none)


def row_room(tokens: int, room: int, experts: ExpertsConfig, ranks: int, capacity: float) -> int:
    """Rows that a round has room for in each rank's list, of so many `tokens`, each of which is sent once to a rank;
    `room` is that for assignments."""
    rows = tokens if ranks == 1 else min(tokens, ceil(capacity * tokens * ranks_per_token(experts, ranks) / ranks))
    return min(room, _aligned(rows))


def rows_to_send(experts: ExpertsConfig) -> float:
    """Rows that are sent, for each of a rank's tokens, before one is sent to several ranks: clusters or the token."""
    return exchanged_experts(experts)[1]


def rows_for_ranks(experts: ExpertsConfig, capacity: float, expert: int) -> float:
    """Rows that a round has room for on all expert ranks together, for each of a rank's tokens, before each rank's are
    rounded up to `ALIGN`."""
    seen, rows = exchanged_experts(experts)
    return rows * min(expert, seen.per_token * min(capacity, expert), capacity * ranks_per_token(seen, expert))
