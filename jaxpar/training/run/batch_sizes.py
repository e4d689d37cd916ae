"""Programs for the batches of `data.batch_ramp`, which are smaller than the largest, for which the plan is made.

Their microbatches have as many rows as the plan's, so there are fewer; a batch of less than one has one of its rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import jax
from jax.sharding import Mesh

from jaxpar.checkpoint.same_program import check_program
from jaxpar.config import Config, UserError
from jaxpar.config.plan import Plan
from jaxpar.config.ramp import stretches
from jaxpar.layout.checks.validate import validate
from jaxpar.layout.step_layout import StepLayout
from jaxpar.runtime.batch import BatchPlacer
from jaxpar.training.run.out_of_memory import explained
from jaxpar.training.step.train_step import TrainStep


class SizedStep:
    """The step of one size of batch.

    Args:
        layout: of that size.
        mesh: of the run.
        functions: of `layout`.
    """

    def __init__(self, layout: StepLayout, mesh: Mesh, functions: TrainStep):
        self.layout, self.mesh, self.functions = layout, mesh, functions
        self.placer = BatchPlacer(layout.batch, mesh)

    @cached_property
    def compiled(self) -> jax.stages.Compiled:
        """The compiled step. It never compiles again: an argument of another shape is an error."""
        state, batch = self.functions.residency.abstract_input(), self.layout.abstract_batch(self.mesh)
        lowered = self.functions.train.lower(state, batch, self.layout.abstract_arguments(self.mesh))
        check_program(lowered, "a step")
        with explained(self.layout, self.mesh):
            return lowered.compile()


def smaller_steps(config: Config, plan: Plan, mesh: Mesh, batch: int) -> dict[int, SizedStep]:
    """Rows of a batch to its step, for the sizes of `data.batch_ramp` from `batch` on.

    Raises `UserError` for a size that the mesh or the microbatches of the plan do not divide, or a plan that offloads
    state.
    """
    sizes = [one.rows for one, following in pairwise(stretches(config.data)) if following.batch > batch]
    if sizes and (plan.optimizer_offload, plan.weights_offload) != ("none", "none"):
        raise UserError("data.batch_ramp: expected all state on the devices, and memory offloads some of it")
    steps = {}
    for size in sizes:
        layout = StepLayout(*_resized(config, plan, size))
        steps[size] = SizedStep(layout, mesh, TrainStep(layout, mesh))
    return steps


def _resized(config: Config, plan: Plan, size: int) -> tuple[Config, Plan]:
    """The configuration and the plan of a smaller batch."""
    least = plan.microbatch_rows * plan.axes.data
    microbatches = max(1, size // least)
    rows, left = divmod(size, microbatches * plan.axes.data)
    tiles = plan.loss_tiles.name * plan.mlp_tiles.name
    if left or (rows != plan.microbatch_rows and (size > least or tiles > 1)):
        expected = f"{plan.axes.data} data ranks"
        if size > least or tiles > 1:
            expected = f"{least} of a microbatch (parallel.microbatches is {plan.microbatches}, over {expected})"
        raise UserError(f"data.batch_ramp: {size} rows are no multiple of the {expected}; expected one")
    changed = replace(
        config,
        data=replace(config.data, batch_size=size, batch_ramp=()),
        parallel=replace(config.parallel, microbatches=microbatches),
    )
    try:
        validate(changed)
    except UserError as error:
        raise UserError(f"data.batch_ramp: {size} rows: {error}") from None
    return changed, replace(plan, microbatches=microbatches, microbatch_rows=rows)
