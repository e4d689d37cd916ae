"""Metrics of islands as one number each, made where it is read: a step has no message for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxpar.mesh.build import on_hosts

REDUCED: dict[str, Callable[..., Any]] = {"tokens": np.sum, "finite": np.all, "skipped_in_row": np.max}
"""How step metrics of the whole run are made of those of islands, by name; others are means."""


@dataclass(frozen=True, eq=False)
class OfIslands:
    """An array [island, ...] that is read as one of the whole run. On several processes, all must read it."""

    array: jax.Array
    reduced: Callable[..., Any]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.asarray(self.reduced(on_hosts(self.array), axis=0), dtype)

    def __float__(self) -> float:
        return float(self.__array__())

    def __int__(self) -> int:
        return int(self.__array__())

    def __bool__(self) -> bool:
        return bool(self.__array__())

    def block_until_ready(self) -> OfIslands:
        """Wait for the step, as arrays do."""
        self.array.block_until_ready()
        return self


def metrics_of_islands(metrics: Any) -> Any:
    """Step metrics [island, ...] as those of the whole run."""
    each = metrics._asdict().items()
    leaf = lambda name, tree: jax.tree.map(lambda array: OfIslands(array, REDUCED.get(name, np.mean)), tree)
    return type(metrics)(**{name: leaf(name, tree) for name, tree in each})
