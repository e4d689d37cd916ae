"""What measured runs show of a system: which software it may be, and what its runs share beside that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt

from jaxpar.planner.step_time.interval import Spread


@dataclass(frozen=True)
class Posterior:
    """After some runs of a system were measured."""

    weights: Mapping[str, float]
    """How likely each kind of software is; they add up to 1."""
    spreads: Mapping[str, Spread]
    """What its runs share if it is of that kind."""

    @property
    def likeliest(self) -> str:
        """The kind that the runs are most like."""
        return max(self.weights, key=self.weights.__getitem__)

    @property
    def shared(self) -> Spread:
        """What its runs share, whichever software it is."""
        return self._spread({kind: spread.shift for kind, spread in self.spreads.items()})

    def seconds(self, each: Mapping[str, float]) -> float:
        """Of another run, which is predicted to take so many seconds as each kind: the geometric mean, with what runs
        share."""
        return exp(self._mean(self._logarithms(each)))

    def spread(self, each: Mapping[str, float]) -> Spread:
        """How far that run may be from `seconds`: kinds that differ in it, or in what they share, widen it."""
        return self._spread(self._logarithms(each))

    def _logarithms(self, each: Mapping[str, float]) -> dict[str, float]:
        return {kind: log(seconds) + self.spreads[kind].shift for kind, seconds in each.items()}

    def _mean(self, values: Mapping[str, float]) -> float:
        return sum(self.weights[kind] * value for kind, value in values.items())

    def _spread(self, values: Mapping[str, float]) -> Spread:
        """Of logarithms of seconds by kind, each known as far as what its runs share is."""
        middle = self._mean(values)
        variances = {kind: (value - middle) ** 2 + self.spreads[kind].between ** 2 for kind, value in values.items()}
        shift = self._mean({kind: spread.shift for kind, spread in self.spreads.items()})
        first = next(iter(self.spreads.values()))
        return replace(first, between=sqrt(self._mean(variances)), shift=shift)


def posterior(measured: Sequence[Mapping[str, float]], prior: Spread) -> Posterior:
    """What runs of one system show.

    Args:
        measured: of each run, the logarithm of measured over predicted seconds as each kind of software that it may
            be; all have the same kinds, which are equally likely before.
        prior: how far runs are from predictions by the mechanisms of their own software.
    """
    after = {kind: prior.after([one[kind] for one in measured]) for kind in measured[0]}
    most = max(likely for _, likely in after.values())
    weights = {kind: exp(likely - most) for kind, (_, likely) in after.items()}
    whole = sum(weights.values())
    return Posterior(
        {kind: weight / whole for kind, weight in weights.items()},
        {kind: spread for kind, (spread, _) in after.items()},
    )
