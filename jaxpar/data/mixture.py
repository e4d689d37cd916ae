"""Several sources mixed by weight: which source an example is from, and which row of it, are functions of its number.

Example `e` is at `u(e)`, the fractional part of `e` times the golden ratio plus a shift from the seed, and belongs to
the source whose share of [0, 1) contains it. These points are spread as evenly as points can be (Weyl 1916;
Knuth, The Art of Computer Programming 3, section 6.4), so every stretch of n examples has each source's share to within
a few rows. Rows of a source are taken in their order: the number of a row is how many examples before it went to the
source, which `_points_below` counts without listing them.

When the weights change during a run, at the example of a checkpoint, each source continues where it was: a
`MixturePhase` holds the first example of the weights, and how many rows of each source were used before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from jaxpar.data.document_rows import DocumentRows
from jaxpar.data.packing import PackedRows, Row
from jaxpar.data.randomness import random_bits
from jaxpar.data.stream import TokenStream

CIRCLE = 2**64
STRIDE = 0x9E3779B97F4A7C15
"""The golden ratio's fractional part times 2**64, odd, so that 2**64 examples stand at different points."""
SAMPLE_TOKENS = 2**25
"""Tokens of the sample that `Mixture.stream` is."""

_SHIFT = 2


@dataclass(frozen=True)
class MixedSource:
    """A source of a mixture."""

    name: str
    """The source's name in the configuration."""
    identity: str
    """The source's name in checkpoints, independent of its path."""
    rows: PackedRows | DocumentRows
    weight: float


@dataclass(frozen=True)
class MixturePhase:
    """A stretch of a run with the same weights."""

    first: int
    """The first example of the phase."""
    weights: dict[str, float]
    """Identity of each source to its weight."""
    used: dict[str, int]
    """Identity of each source of any phase to its rows used before `first`."""


class Mixture:
    """Rows of several sources, mixed by weight; see the module's text.

    Args:
        sources: at least one; weights are at least 0, and one of them is above.
        seed: with the weights, determines the source of each example.
        phase: the start of these weights; None means the beginning.
    """

    def __init__(self, sources: Sequence[MixedSource], *, seed: int, phase: MixturePhase | None = None) -> None:
        # In an order that does not depend on how the configuration is written.
        self._sources = sorted(sources, key=lambda source: source.identity)
        self._by_identity = {source.identity: source for source in self._sources}
        assert len(self._by_identity) == len(self._sources), "each source once"
        self._seed = seed
        self._phase = phase or MixturePhase(0, {source.identity: source.weight for source in self._sources}, {})
        self._shares = _Shares(self._phase.weights, seed)
        self._before = self._shares.rows_of_sources(self._phase.first)
        self.sequence_length = self._sources[0].rows.sequence_length

    def source_row(self, example: int) -> tuple[MixedSource, int]:
        """The source of an example, and the number of its row there."""
        assert example >= self._phase.first, "an example of this phase"
        identity, count = self._shares.owner(example)
        row = self._phase.used.get(identity, 0) + count - self._before[identity]
        return self._by_identity[identity], row

    @property
    def shuffle(self) -> int:
        """Version of the order of each source's documents."""
        return self._sources[0].rows.shuffle

    def shuffled(self, version: int) -> Mixture:
        """This mixture, with each source's rows in the order of another version."""
        sources = [replace(source, rows=source.rows.shuffled(version)) for source in self._sources]
        return Mixture(sources, seed=self._seed, phase=self._phase)

    def row(self, example: int) -> Row:
        """The row of an example."""
        source, row = self.source_row(example)
        return source.rows.row(row)

    def used(self, examples: int) -> dict[str, int]:
        """Identity of each source of any phase to its rows in the examples below `examples`."""
        rows = self._shares.rows_of_sources(examples)
        used = dict(self._phase.used)
        for identity, count in rows.items():
            used[identity] = used.get(identity, 0) + count - self._before[identity]
        return used

    def epochs(self, examples: int) -> dict[str, float]:
        """Name of each source to its epochs, once the examples below `examples` are used."""
        used = self.used(examples)
        return {source.name: used[source.identity] / source.rows.rows_per_epoch for source in self._sources}

    @property
    def facts(self) -> dict[str, object]:
        """The phase as JSON, which a checkpoint saves to continue it."""
        return asdict(self._phase)

    def continued(self, facts: Mapping[str, Any], example: int) -> Mixture:
        """This mixture, continued at `example` after the phase of a checkpoint.

        It is unchanged if the weights are equal; otherwise each source of the new mixture continues at its next row.
        """
        old = MixturePhase(facts["first"], dict(facts["weights"]), dict(facts["used"]))
        if (
            _Shares(old.weights, self._seed).stops == self._shares.stops
            and old.weights.keys() == self._phase.weights.keys()
        ):
            return Mixture(self._sources, seed=self._seed, phase=old)
        shares = _Shares(old.weights, self._seed)
        before, now = shares.rows_of_sources(old.first), shares.rows_of_sources(example)
        used = dict(old.used)
        for identity in old.weights:
            used[identity] = used.get(identity, 0) + now[identity] - before[identity]
        return Mixture(self._sources, seed=self._seed, phase=replace(self._phase, first=example, used=used))

    @property
    def stream(self) -> TokenStream:
        """A sample of the mixture: the first documents of each source, by weight, in memory."""
        return self._sample

    @cached_property
    def _sample(self) -> TokenStream:
        total = sum(source.weight for source in self._sources)
        parts, starts, size = [], [], 0
        for source in self._sources:
            stream = source.rows.stream
            wanted = min(round(SAMPLE_TOKENS * source.weight / total), len(stream))
            tokens = stream.tokens[:wanted]
            starts.append(stream.starts[: int(stream.starts.searchsorted(wanted))] + size)
            parts.append(tokens)
            size += len(tokens)
        return TokenStream(np.concatenate(parts), np.concatenate(starts))


class _Shares:
    """The circle of 2**64 points, divided among the sources by weight.

    Args:
        weights: identity to weight; in the order of the identities.
        seed: shifts the examples on the circle.
    """

    def __init__(self, weights: Mapping[str, float], seed: int) -> None:
        self._names = sorted(weights)
        exact = [Fraction(weights[name]) for name in self._names]  # A source without weight gets not a single example.
        self.stops = [int(so_far / sum(exact) * CIRCLE) for so_far in accumulate(exact)]
        self._shift = int(random_bits(1, seed, _SHIFT)[0])

    def owner(self, example: int) -> tuple[str, int]:
        """The source of an example, and how many earlier examples that source has."""
        source = bisect_right(self.stops, (STRIDE * example + self._shift) % CIRCLE)
        low = self.stops[source - 1] if source else 0
        return self._names[source], self._below(example, self.stops[source]) - self._below(example, low)

    def rows_of_sources(self, examples: int) -> dict[str, int]:
        """The number of the first `examples` examples that each source supplies."""
        below = [0, *(self._below(examples, end) for end in self.stops)]
        return {name: high - low for name, low, high in zip(self._names, below, below[1:], strict=False)}

    def _below(self, examples: int, end: int) -> int:
        return points_below(end, examples, STRIDE, self._shift, CIRCLE)


def points_below(end: int, count: int, stride: int, shift: int, circle: int) -> int:
    """Count the points `(stride * i + shift) mod circle`, for i from 0 to `count - 1`, that are below `end`.

    A point x is below `end` when floor(x / circle) and floor((x - end) / circle) differ.
    """
    return (
        count
        + _sum_of_floors(count, circle, stride, shift)
        - _sum_of_floors(count, circle, stride, shift + circle - end)
    )


def _sum_of_floors(count: int, divisor: int, stride: int, shift: int) -> int:
    """The sum of floor((stride * i + shift) / divisor) for i from 0 to `count - 1`, by Euclid's algorithm (Graham,
    Knuth and Patashnik, Concrete Mathematics, section 3.5)."""
    total = 0
    while True:
        total += (count - 1) * count // 2 * (stride // divisor) + count * (shift // divisor)
        stride, shift = stride % divisor, shift % divisor
        last = stride * count + shift
        if last < divisor:
            return total
        count, divisor, stride, shift = last // divisor, stride, divisor, last % divisor
