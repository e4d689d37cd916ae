"""From a process's rows of a batch to arrays over the whole mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from jaxpar.attention.balance import sequence_order
from jaxpar.config.plan import Plan
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.axes import DATA_AXES
from jaxpar.runtime.batch import BatchLayout, Field


def row_order(plan: Plan, length: int) -> Int[np.ndarray, " length"]:
    """The token index at each place of a row, the context ranks' parts one after another."""
    return sequence_order(plan.context_order, length, plan.axes.context // plan.ulysses)


class BatchPlacer:
    """Determines the rows of each batch that this process loads, and puts them on its devices in the plan's order."""

    def __init__(self, layout: StepLayout, mesh: Mesh):
        self._batch, self._mesh = layout.batch, mesh
        self.order = row_order(layout.plan, layout.batch.shape[2])
        self.rows = self._local_rows()
        """Row numbers, within a batch, that this process loads; ascending."""

    def _local_rows(self) -> np.ndarray:
        shape = self._batch.shape[:2]
        numbers = np.arange(shape[0] * shape[1]).reshape(shape)
        by_row = NamedSharding(self._mesh, PartitionSpec(None, DATA_AXES))
        parts = by_row.addressable_devices_indices_map(shape)
        return np.unique(np.concatenate([numbers[index].ravel() for index in parts.values() if index is not None]))

    def __call__(self, rows: Mapping[str, np.ndarray], batch: BatchLayout | None = None) -> dict[str, jax.Array]:
        """Place this process's `rows` ([row, ...], in the order of `self.rows`) as arrays [microbatch, row, ...].

        The arrays are those of the fields of `batch`, by default all of a training step. Raises `UserError` where rows
        lack one of them, or have it in another shape.
        """
        return {field.name: self._placed(field, rows) for field in (batch or self._batch).fields}

    def _placed(self, field: Field, rows: Mapping[str, np.ndarray]) -> jax.Array:
        microbatches, per_microbatch, tokens = self._batch.shape
        local, per_row = field.checked(rows, len(self.rows), tokens), field.per == "row"

        def part(index: Any) -> np.ndarray:
            first, last, _ = index[1].indices(per_microbatch)
            wanted = np.arange(microbatches)[index[0], None] * per_microbatch + np.arange(first, last)
            mine = local[np.searchsorted(self.rows, wanted)]
            return mine if per_row else mine[:, :, self.order[index[2]]]

        shape, partition = self._batch.array_shape(field), self._batch.partitions[field.name]
        return jax.make_array_from_callback(shape, NamedSharding(self._mesh, partition), part)
