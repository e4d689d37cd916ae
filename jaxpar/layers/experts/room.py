"""What a round of an exchange has room for, as closed formulas: the step, the plan and the planner share them."""

from __future__ import annotations

from math import ceil, prod

from jaxpar.config.schema.experts import ExpertsConfig
from jaxpar.layers.experts.clusters import as_sent
from jaxpar.layers.experts.routers import groups_of

PLACE_BYTES = 8
"""What is sent with each assignment: its weight, and its expert and row."""


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
    count, own = experts.count, experts.count // ranks
    groups, some = groups_of(experts)
    if some < groups and ranks % groups == 0:
        ranks = ranks * some // groups
        count = own * ranks
    none = prod(max(0, count - own - i) / (count - i) for i in range(experts.per_token))
    return ranks * (1 - none)


def row_room(tokens: int, room: int, experts: ExpertsConfig, ranks: int, capacity: float) -> int:
    """Rows that a round has room for in each rank's list, of so many `tokens`, each of which is sent once to a rank;
    `room` is that for assignments."""
    own = tokens if ranks == 1 else min(tokens, ceil(capacity * tokens * ranks_per_token(experts, ranks) / ranks))
    return min(room, _aligned(own))


def rows_to_send(experts: ExpertsConfig) -> float:
    """Rows that are sent, for each of a rank's tokens, before one is sent to several ranks: clusters or the token."""
    return as_sent(experts)[1]


def rows_for_ranks(experts: ExpertsConfig, capacity: float, expert: int) -> float:
    """Rows that a round has room for on all expert ranks together, for each of a rank's tokens, before each rank's are
    rounded up to `ALIGN`."""
    seen, rows = as_sent(experts)
    return rows * min(expert, seen.per_token * min(capacity, expert), capacity * ranks_per_token(seen, expert))
