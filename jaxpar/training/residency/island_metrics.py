"""Metrics of islands as one number each, made where it is read: a step has no message for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import DTypeLike

from jaxpar.mesh.build import to_numpy

REDUCED: dict[str, Callable[..., np.ndarray]] = {"tokens": np.sum, "finite": np.all, "skipped_in_row": np.max}
"""Reductions over islands of the step metrics, by name; others are means."""
PER_TOKEN = ("loss", "report")
"""Metrics whose mean is over the tokens of all islands."""


def mean_over_tokens(array: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The mean of a metric [island, ...], weighted by the islands' tokens; islands without a token have none."""
    some = tokens != 0
    return np.average(array[some], axis=0, weights=tokens[some]) if some.any() else array.mean(axis=0)


@dataclass(frozen=True, eq=False)
class OfIslands:
    """Arrays [island, ...] that are read as one of the run. On several processes, all must read it."""

    arrays: tuple[jax.Array, ...]
    reduced: Callable[..., np.ndarray]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.asarray(self.reduced(*map(to_numpy, self.arrays)), dtype)

    def __float__(self) -> float:
        return float(self.__array__())

    def __int__(self) -> int:
        return int(self.__array__())

    def __bool__(self) -> bool:
        return bool(self.__array__())

    def block_until_ready(self) -> OfIslands:
        """Wait for the step, as arrays do."""
        jax.block_until_ready(self.arrays)
        return self


def metrics_of_islands(metrics: Any) -> Any:
    """Step metrics [island, ...] as those of the run."""

    def run_metric(name: str, array: jax.Array) -> OfIslands:
        if name in PER_TOKEN:
            return OfIslands((array, metrics.tokens), mean_over_tokens)
        return OfIslands((array,), partial(REDUCED.get(name, np.mean), axis=0))

    each = metrics._asdict().items()
    return type(metrics)(**{name: jax.tree.map(partial(run_metric, name), tree) for name, tree in each})
