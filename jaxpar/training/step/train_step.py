"""The training step: one `shard_map`, manual over every mesh axis, from state and batch to state and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.stages import Wrapped
from jaxtyping import Array, Float, PyTree

from jaxpar.checkpoint.same_program import compared
from jaxpar.layout.state import TrainState
from jaxpar.layout.step_arguments import StepArguments
from jaxpar.layout.step_layout import StepLayout
from jaxpar.layout.step_options import step_options
from jaxpar.mesh.axes import vary
from jaxpar.mesh.build import Layouts, mapped
from jaxpar.mesh.collectives import sum_over_islands
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch
from jaxpar.runtime.carried import REPLICATED
from jaxpar.training.residency.on_device import OnDevice
from jaxpar.training.residency.on_disk import OnDisk
from jaxpar.training.residency.on_host import OnHost
from jaxpar.training.residency.outer_on_host import OuterOnHost
from jaxpar.training.step.forward_backward import StepFunctions, StepMetrics

RESIDENCIES: dict[str, type[OnDevice]] = {"none": OnDevice, "host": OnHost, "file": OnDisk}
"""The residency for each value of `memory.optimizer_offload`."""


def residency_of(layout: StepLayout, mesh: Mesh) -> OnDevice:
    """Optimizer-state placement of a layout."""
    kind = OuterOnHost if layout.outer_on_host else RESIDENCIES[layout.plan.optimizer_offload]
    return kind(layout, mesh)


class TrainStep:
    """The compiled functions of a layout on one mesh."""

    def __init__(self, layout: StepLayout, mesh: Mesh):
        self.layout, self.mesh = layout, mesh
        self.residency = residency_of(layout, mesh)
        self._functions = StepFunctions(layout, self.residency)

    @cached_property
    def arguments(self) -> StepArguments:
        """The numbers of the configuration that steps take as arguments, on the mesh."""
        return self.placed(self.layout.arguments)

    def placed(self, arguments: StepArguments) -> StepArguments:
        """`arguments` (NumPy scalars) on the mesh."""
        everywhere = NamedSharding(self.mesh, REPLICATED)
        put = lambda leaf: jax.make_array_from_callback((), everywhere, lambda _: np.asarray(leaf))
        return jax.tree.map(put, arguments)

    @cached_property
    def train(self) -> Wrapped:
        """Compiled (state, batch, arguments) -> (state, `StepMetrics`), or the part that `OnDevice.advance` needs.

        The old state's buffers are reused.
        """
        metrics = StepMetrics(*[REPLICATED] * len(StepMetrics._fields))._replace(squares=self.layout.squares)
        return self.residency.train(self._functions.measured, metrics)

    @cached_property
    def evaluate(self) -> Callable[..., Any]:
        """Compiled (all weights of a state, batch) -> (sums of what the loss reports, the objective's count).

        Messages are exact, since the loss is to be that of the weights that are saved.
        """
        exact = replace(self.layout, plan=self.layout.plan.with_exact_messages())
        functions = StepFunctions(exact, residency_of(exact, self.mesh))

        def sum_of_islands(weights: Weights, batch: Batch) -> PyTree[Array]:
            return jax.tree.map(sum_over_islands, functions.evaluate(vary(weights, ()), batch))

        function = sum_of_islands if exact.islands else functions.evaluate
        return compared(
            self.compiled(function, (exact.weights, exact.evaluated.partitions), REPLICATED), "an evaluation"
        )

    @cached_property
    def gradients(self) -> Wrapped:
        """Compiled (state, batch) -> (loss, gradients in optimizer placement), for tests and analysis."""

        def function(state: TrainState, batch: Batch) -> tuple[Float[Array, ""], Weights]:
            step = self._functions.gradients(state, batch, jnp.uint32(self.layout.arguments.seed))
            return step.loss, self.residency.full(step.gradients)

        results = REPLICATED, self.layout.master
        return self.compiled(function, (self.layout.state, self.layout.batch.partitions), results)

    def compiled(self, function: Callable[..., PyTree], in_layouts: Layouts, out_layouts: Layouts) -> Wrapped:
        """`function` of each device's parts, jitted on this mesh."""
        program = mapped(function, self.mesh, self.layout.plan.dtypes.compute, in_layouts, out_layouts)
        return jax.jit(program, compiler_options=step_options(self.layout.plan, self.mesh))
