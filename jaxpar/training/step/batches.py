"""From a process's rows of a batch to arrays over the whole mesh."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Int

from jaxpar.attention.balance import sequence_order
from jaxpar.config.plan import Plan
from jaxpar.layers.experts.replay import EXPERTS
from jaxpar.layout.step_layout import StepLayout, shardings


def row_order(plan: Plan, length: int) -> Int[np.ndarray, " length"]:
    """The token index at each place of a row, the context ranks' parts one after another."""
    return sequence_order(plan.context_order.name, length, plan.axes.context // plan.ulysses)


class BatchPlacer:
    """Determines the rows of each batch that this process loads, and puts them on its devices in the plan's order."""

    def __init__(self, layout: StepLayout, mesh: Mesh):
        self.shape, self._array_shape = layout.batch_shape, layout.array_shape
        self.shardings: dict[str, NamedSharding] = shardings(mesh, layout.batch)
        self.order = row_order(layout.plan, self.shape[2])
        self.rows = self._own_rows()
        """Row numbers, within a batch, that this process loads; ascending."""

    def _own_rows(self) -> np.ndarray:
        numbers = np.arange(self.shape[0] * self.shape[1]).reshape(self.shape[:2])
        parts = self.shardings["examples"].addressable_devices_indices_map(self.shape[:2])
        return np.unique(np.concatenate([numbers[index].ravel() for index in parts.values() if index is not None]))

    def __call__(self, rows: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Place this process's `rows` ([row, ...], in the order of `self.rows`) as arrays [microbatch, row, ...]."""
        microbatches, per_microbatch, _ = self.shape

        def array(name: str) -> jax.Array:
            per_row = len(self.shardings[name].spec) == 2
            local, shape = rows[name], self._array_shape(name)
            if name == "examples":  # On devices they wrap around: see `jaxpar.layers.context`.
                local = (local.astype(np.int64) % 2**31).astype(np.int32)

            def part(index: Any) -> np.ndarray:
                first, last, _ = index[1].indices(per_microbatch)
                wanted = np.arange(microbatches)[index[0], None] * per_microbatch + np.arange(first, last)
                mine = local[np.searchsorted(self.rows, wanted)]
                return mine if per_row else mine[:, :, self.order[index[2]]]

            return jax.make_array_from_callback(shape, self.shardings[name], part)

        # Held-out rows have no experts of their own.
        return {name: array(name) for name in self.shardings if name != EXPERTS or name in rows}
