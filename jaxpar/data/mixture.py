"""Several sources mixed by weight: which source an example is from, and which row of it, are functions of its number.

Example `e` is at `u(e)`, the fractional part of `e` times the golden ratio plus a shift from the seed, and belongs to
the source whose share of [0, 1) contains it. These points are spread as evenly as points can be (Weyl 1916;
Knuth, The Art of Computer Programming 3, section 6.4), so every stretch of n examples has each source's share to within
a few rows. Rows of a source are taken in their order: the number of a row is how many examples before it went to the
source, which `_points_below` counts without listing them.

Weights change during a run: as planned, when a source has had its most epochs, or at the example of a checkpoint. Each
source continues where it was: a `MixturePhase` holds the first example of the weights, and how many rows of each source
were used before. Phases are planned ahead (`plan_phases`), so that they too are functions of the example's number.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from jaxpar.config.errors import UserError
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
_LAST = 2**62
"""More examples than any run has."""


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


@dataclass(frozen=True)
class MixturePlan:
    """Changes of a mixture's weights, but for those of a resumed run."""

    changes: Sequence[tuple[int, Mapping[str, float]]]
    """The weights of all sources by identity from an example on, in order; the first from example 0."""
    most: Mapping[str, int]
    """Most rows that are used of a source, by identity."""


class Mixture:
    """Rows of several sources, mixed by weight; see the module's text.

    Args:
        sources: at least one; weights are at least 0, and one of them is above.
        seed: with the weights, determines the source of each example.
        plan: later weights, and limits; None means the weights of the sources throughout.
        phases: those of a run that is continued; None plans them from the first example on.
    """

    def __init__(
        self,
        sources: Sequence[MixedSource],
        *,
        seed: int,
        plan: MixturePlan | None = None,
        phases: Sequence[MixturePhase] | None = None,
    ) -> None:
        # In an order that does not depend on how the configuration is written.
        self._sources = sorted(sources, key=lambda source: source.identity)
        self._by_identity = {source.identity: source for source in self._sources}
        assert len(self._by_identity) == len(self._sources), "each source once"
        self._seed = seed
        self._plan = plan or MixturePlan([(0, {source.identity: source.weight for source in self._sources})], {})
        self._phases = plan_phases(self._plan, seed)[0] if phases is None else list(phases)
        self.examples = plan_phases(self._plan, seed, self._phases[-1])[1]
        """Number of examples if each source has a limit; None if there is no end."""
        self._firsts = [phase.first for phase in self._phases]
        self._shares = [_Shares(phase.weights, seed) for phase in self._phases]
        self._before = [
            shares.rows_of_sources(phase.first) for shares, phase in zip(self._shares, self._phases, strict=True)
        ]
        self.sequence_length = self._sources[0].rows.sequence_length

    @property
    def phases(self) -> list[tuple[int, dict[str, float]]]:
        """The first example of each stretch with the same weights, and the weights by the names of the sources."""
        names = {source.identity: source.name for source in self._sources}
        return [
            (phase.first, {names[identity]: weight for identity, weight in phase.weights.items() if identity in names})
            for phase in self._phases
        ]

    def source_row(self, example: int) -> tuple[MixedSource, int]:
        """The source of an example, and the number of its row there. Raises `UserError` where no source has one."""
        assert example >= self._firsts[0], "an example of these phases"
        if self.examples is not None and example >= self.examples:
            raise UserError(f"data.max_epochs: all sources have had their epochs after {self.examples} rows")
        index = bisect_right(self._firsts, example) - 1
        identity, count = self._shares[index].owner(example)
        row = self._phases[index].used.get(identity, 0) + count - self._before[index][identity]
        return self._by_identity[identity], row

    @property
    def shuffle(self) -> int:
        """Version of the order of each source's documents."""
        return self._sources[0].rows.shuffle

    def shuffled(self, version: int) -> Mixture:
        """This mixture, with each source's rows in the order of another version."""
        sources = [replace(source, rows=source.rows.shuffled(version)) for source in self._sources]
        return Mixture(sources, seed=self._seed, plan=self._plan, phases=self._phases)

    def row(self, example: int) -> Row:
        """The row of an example."""
        source, row = self.source_row(example)
        return source.rows.row(row)

    def used(self, examples: int) -> dict[str, int]:
        """Identity of each source of any phase to its rows in the examples below `examples`."""
        index = max(bisect_right(self._firsts, examples) - 1, 0)
        return _used(self._phases[index], self._shares[index], examples)

    def epochs(self, examples: int) -> dict[str, float]:
        """Name of each source to its epochs, once the examples below `examples` are used."""
        used = self.used(examples)
        return {source.name: used[source.identity] / source.rows.rows_per_epoch for source in self._sources}

    @property
    def facts(self) -> dict[str, object]:
        """The phases as JSON, which a checkpoint saves to continue them."""
        return {"phases": [asdict(phase) for phase in self._phases]}

    def continued(self, facts: Mapping[str, Any], example: int) -> Mixture:
        """This mixture, continued at `example` after the phases of a checkpoint.

        It is unchanged if the weights are equal from there on; otherwise each source of the new mixture continues at
        its next row.
        """
        old = [MixturePhase(one["first"], dict(one["weights"]), dict(one["used"])) for one in facts["phases"]]
        index = max(bisect_right([phase.first for phase in old], example) - 1, 0)
        used = _used(old[index], _Shares(old[index].weights, self._seed), example)
        following, _ = plan_phases(self._plan, self._seed, MixturePhase(example, {}, used))
        if not following:
            raise UserError(f"data.max_epochs: all sources have had their epochs after {example} rows")
        shares = lambda phases: [_Shares(one.weights, self._seed).divided for one in phases]
        alike = shares(following) == shares(old[index:]) and (
            [one.first for one in following[1:]] == [one.first for one in old[index + 1 :]]
        )
        return Mixture(self._sources, seed=self._seed, plan=self._plan, phases=old if alike else following)

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


def plan_phases(
    plan: MixturePlan, seed: int, start: MixturePhase | None = None
) -> tuple[list[MixturePhase], int | None]:
    """The phases from that of `start` on, and the example at which all sources have had their most rows, if any.

    The weight of a source that has had its most rows goes to the others, in proportion to theirs.
    """
    first, used = (0, {}) if start is None else (start.first, dict(start.used))
    phases: list[MixturePhase] = []
    while True:
        planned = [weights for begin, weights in plan.changes if begin <= first][-1]
        most = {name: plan.most[name] for name in planned if name in plan.most}
        weights = {
            name: 0.0 if name in most and used.get(name, 0) >= most[name] else weight
            for name, weight in planned.items()
        }
        if not any(weights.values()):
            return phases, first
        phases.append(MixturePhase(first, weights, used))
        shares = _Shares(weights, seed)
        before = shares.rows_of_sources(first)
        stops = [begin for begin, _ in plan.changes if begin > first]
        for name, limit in most.items():
            if weights[name]:
                needed = limit - used.get(name, 0) + before[name]
                stops.append(bisect_left(range(_LAST), needed, key=lambda one: shares.rows_of_sources(one)[name]))
        if not stops or (following := min(stops)) >= _LAST:
            return phases, None
        used, first = _used(phases[-1], shares, following), following


def _used(phase: MixturePhase, shares: _Shares, examples: int) -> dict[str, int]:
    """Rows of each source of any phase in the examples below `examples`, the last of which are of `phase`."""
    used, before = dict(phase.used), shares.rows_of_sources(phase.first)
    for name, rows in shares.rows_of_sources(examples).items():
        used[name] = used.get(name, 0) + rows - before[name]
    return used


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

    @property
    def divided(self) -> list[tuple[str, int]]:
        """Each source with the end of its part of the circle."""
        return list(zip(self._names, self.stops, strict=True))

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
