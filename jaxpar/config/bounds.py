"""Ranges of numbers, which stand beside the fields of records, as in `Annotated[int, at_least(1)]`.

Checks between keys are in `validate.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """A range of numbers and its description."""

    words: str
    holds: Callable[[float], bool]
    most: float = 1e30
    """The largest number; most of these limits are only sanity checks, far above what any run has used."""

    def refusal(self, value: float) -> str | None:
        """The end of an error about a value out of range; None for a value within it."""
        if not self.holds(value):
            return f"must be {self.words}"
        return f"must be at most {spell_limit(self.most)}" if value > self.most else None


def spell_limit(limit: float) -> str:
    """A limit in readable form: `2^31 - 1`, `2^20`, `10000`."""
    if isinstance(limit, float):
        return f"{limit:g}"
    power = (limit + 1).bit_length() - 1
    if limit >= 2**20 and limit == 2**power - 1:
        return f"2^{power} - 1"
    power = limit.bit_length() - 1
    return f"2^{power}" if limit >= 2**12 and limit == 2**power else str(limit)


COUNT = 2**31 - 1
"""The largest 32-bit integer: steps, vocabulary ids and positions are 32-bit integers on devices."""
BYTES = 2**62
CHUNKS = 4
"""Chunks of a tensor rank's part that pass round by themselves."""
CAPACITY = 1e6
PERCENT = 10_000
"""Limit for the percentage of a device's memory that XLA counts with."""
SLICES = 16
"""Slices of an exchange of tokens; each is compiled by itself."""
RANKS = 2**20
"""Limit for the devices of a mesh."""
LAYERS = 10_000
COLLECTIVES = 64
ROWS = 2**24
"""Limit for the rows of a batch."""
WIDTH = 2**24
SEQUENCE = 2**27
MICROBATCHES = 2**14
SECONDS = 1_000_000
"""Limit for timeouts: eleven days, which in milliseconds still fits into 32 bits."""
MINUTES = 1_000_000
"""Limit for the time between two saves: almost two years."""
PARAMETERS = 10**15
"""Limit for the weights of a model."""
TOKENS = 2**36
"""Limit for the tokens of the batches in memory: that of a step, and those prepared ahead."""
UNLIMITED = float("inf")


def at_least(low: float, most: float = COUNT) -> Bound:
    """The range from `low` to `most`."""
    return Bound(f"at least {low:g}", lambda value: value >= low, most)


POSITIVE = Bound("above 0", lambda value: value > 0)
SHARE = Bound("from 0 to 1", lambda value: 0 <= value <= 1, UNLIMITED)
SHARE_ABOVE_0 = Bound("above 0 and at most 1", lambda value: 0 < value <= 1, UNLIMITED)
BELOW_ONE = Bound("from 0 to below 1", lambda value: 0 <= value < 1, UNLIMITED)
BELOW_HALF = Bound("from 0 to below 0.5", lambda value: 0 <= value < 0.5, UNLIMITED)
ABOVE_ONE = Bound("above 1", lambda value: value > 1)
BETWEEN = Bound("above 0 and below 1", lambda value: 0 < value < 1, UNLIMITED)
SEED = Bound("from 0 to 2^32 - 1", lambda value: 0 <= value < 2**32, UNLIMITED)
AXIS = Bound("at least 1, or -1 for what remains", lambda value: value >= 1 or value == -1, RANKS)
