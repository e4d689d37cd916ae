"""The update of one weight, or of some rows of it, and what a step knows before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxpar.config.parts import OPTIMIZERS
from jaxpar.layout.state import TrainState, WeightState
from jaxpar.layout.step_arguments import StepArguments
from jaxpar.layout.step_layout import StepLayout
from jaxpar.memory.streaming import rows_of_piece
from jaxpar.mesh.parameters import ParamSpec, Weights
from jaxpar.mesh.rules import axes_of_dim
from jaxpar.model.decoder import Batch
from jaxpar.optim import OptimizerArguments, WeightOptimizer, clip


class UpdateFacts(NamedTuple):
    """Facts of the whole step that the update of each weight needs."""

    norm: Float[Array, ""]
    """Norm of the gradient, before clipping."""
    applies: Bool[Array, ""]
    """Whether there is an update at all."""
    applied: Int[Array, ""]
    """Updates before this one."""
    arguments: OptimizerArguments
    """Scalars of this step."""


class Measured(NamedTuple):
    """The results of a step before its update."""

    gradients: Weights
    """The gradients, in optimizer placement and in the form of the residency."""
    facts: UpdateFacts
    following: TrainState
    """The state after the step, without master weights and optimizer state."""
    metrics: PyTree


type CompiledStep = Callable[..., tuple[PyTree, ...]]
"""A jitted step: (state, batch, arguments) -> the next state, or what it is made of, and metrics."""
type Measure = Callable[[TrainState, Batch, StepArguments], Measured]
"""Forward, backward and norm of a step, on the parts of one device."""


@dataclass(frozen=True)
class WeightUpdate:
    """The update of one weight, or of some of its rows: the same bits wherever the state is stored."""

    optimizer: WeightOptimizer
    by_rows: bool
    """Whether rows of the first dim may be updated by themselves."""
    least_rows: int
    """The smallest piece in rows: fewer would not be cheaper."""

    def __call__(self, state: WeightState, gradient: Float[Array, "*shard"], facts: UpdateFacts) -> WeightState:
        """The state after a step; the same bits where the step does not apply.

        The barriers keep XLA from fusing the update with what is around it: whether a product and a sum become one
        operation, with one rounding, would otherwise depend on where the state is stored.
        """
        state, gradient, facts = lax.optimization_barrier((state, gradient, facts))
        gradient = clip(gradient, facts.norm, facts.arguments.clip_norm)
        master, optimizer = self.optimizer.update(
            gradient, state.optimizer, state.master, facts.applied, facts.arguments
        )
        new = WeightState(master, optimizer)
        return lax.optimization_barrier(jax.tree.map(lambda a, b: jnp.where(facts.applies, a, b), new, state))

    def rows(self, state: WeightState) -> int | None:
        """Rows of a piece of `state` (arrays or shapes of one device's part); None where it cannot be split."""
        return rows_of_piece(state, self.least_rows) if self.by_rows else None


def weight_updates(layout: StepLayout) -> list[WeightUpdate]:
    """One for each leaf of the specs of trained weights."""
    by_layers = OPTIMIZERS[layout.config.optimizer.name].by_layers
    described, structure = jax.tree.flatten(layout.trained)

    def one(optimizer: WeightOptimizer, spec: ParamSpec, where: PartitionSpec) -> WeightUpdate:
        sharding = [axis for dim in range(1, len(spec.shape)) for axis in axes_of_dim(where, dim)]
        # The ranks that share matrices each take a share of the layers.
        matrices = optimizer.rule.granularity == "matrix"
        least = prod(layout.plan.axes[axis] for axis in sharding) if matrices else 1
        return WeightUpdate(optimizer, by_layers and optimizer.rule.cuts(spec), least)

    each = zip(layout.optimizer.weights, described, structure.flatten_up_to(layout.master), strict=True)
    return [one(*leaf) for leaf in each]
