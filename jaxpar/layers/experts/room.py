"""What a round of an exchange has room for, as closed formulas: the step, the plan and the planner share them."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from jaxpar.config.schema.experts import ExpertsConfig

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
    if experts.groups and experts.groups_per_token and ranks % experts.groups == 0:
        ranks = ranks * experts.groups_per_token // experts.groups
        count = own * ranks
    none = prod(max(0, count - own - i) / (count - i) for i in range(experts.per_token))
    return ranks * (1 - none)


def row_room(tokens: int, room: int, experts: ExpertsConfig, ranks: int, capacity: float) -> int:
    """Rows that a round has room for in each rank's list, of so many `tokens`, each of which is sent once to a rank;
    `room` is that for assignments."""
    own = tokens if ranks == 1 else min(tokens, ceil(capacity * tokens * ranks_per_token(experts, ranks) / ranks))
    return min(room, _aligned(own))


def cluster_room(experts: ExpertsConfig, tokens: int, slices: int) -> int:
    """Clusters of so many tokens of a rank (`model.experts.compression`): at least one for each expert, at most one
    for each choice."""
    assert experts.compression is not None, "experts whose tokens are sent in clusters"
    choices = tokens * experts.per_token
    return slices * ceil(min(choices, max(experts.count, experts.compression * choices)) / slices)


def of_clusters(experts: ExpertsConfig) -> ExpertsConfig:
    """Experts as the exchange sees them where it sends clusters, which have one expert each."""
    return replace(experts, per_token=1, groups=None, groups_per_token=None, compression=None)


def rows_to_send(experts: ExpertsConfig) -> float:
    """Rows that are sent, for each of a rank's tokens, before one is sent to several ranks: clusters or the token."""
    return 1.0 if experts.compression is None else experts.compression * experts.per_token


def rows_for_ranks(experts: ExpertsConfig, capacity: float, expert: int) -> float:
    """Rows that a round has room for on all expert ranks together, for each of a rank's tokens, before each rank's are
    rounded up to `ALIGN`."""
    if experts.compression is not None:
        return rows_to_send(experts) * rows_for_ranks(of_clusters(experts), capacity, expert)
    return min(expert, experts.per_token * min(capacity, expert), capacity * ranks_per_token(experts, expert))
