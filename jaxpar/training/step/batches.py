"""From a process's rows of a batch to arrays over the whole mesh."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from jaxpar.attention.balance import sequence_order
from jaxpar.config.plan import Plan
from jaxpar.layout.step_layout import StepLayout
from jaxpar.runtime.batch import BatchLayout


def row_order(plan: Plan, length: int) -> Int[np.ndarray, " length"]:
    """The token index at each place of a row, the context ranks' parts one after another."""
    return sequence_order(plan.context_order.name, length, plan.axes.context // plan.ulysses)


class BatchPlacer:
    """Determines the rows of each batch that this process loads, and puts them on its devices in the plan's order."""

    def __init__(self, layout: StepLayout, mesh: Mesh):
        self.batch, self._mesh = layout.batch, mesh
        self.order = row_order(layout.plan, layout.batch.shape[-1])
        self.rows = layout.batch.local_rows(mesh)
        """Row numbers, within a batch, that this process loads; ascending."""

    def __call__(self, rows: Mapping[str, np.ndarray], batch: BatchLayout | None = None) -> dict[str, jax.Array]:
        """Place this process's `rows` ([row, ...], in the order of `self.rows`) as arrays [microbatch, row, ...].

        The arrays are those of the fields of `batch`, by default of a training step.
        """
        return (batch or self.batch).place(self._mesh, rows, self.rows, self.order)
