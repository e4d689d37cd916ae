"""Seconds of what ranks that share the embedding send in a microbatch: the table, or rows of tokens."""

from __future__ import annotations

from jaxpar.cost.messages import Ring

ID_BYTES = 4.0
"""Of a token's row in the table."""


def of_rows(ring: Ring, tokens: int, embed: int, item: float, *, times: int) -> float:
    """Where the rows of `tokens` of each rank are exchanged, `times` of forward and backward, `item` bytes an element:
    all ranks get the ids of all tokens first."""
    return ring.gather(ID_BYTES * tokens * ring.ranks) + times * ring.exchange(float(tokens * embed * item))


def of_table(ring: Ring, elements: float, gathered: float, scattered: float) -> float:
    """Where the table is gathered, and its gradient scattered, at so many bytes an element; 0 of what stays."""
    return ring.gather(elements * gathered) + ring.gather(elements * scattered)
