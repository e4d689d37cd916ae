"""The update of one weight, or of some rows of it: what state that does not rest on the device passes through."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config.plan import AxisSizes
from jaxpar.config.schema import OptimizerConfig
from jaxpar.memory.streaming import rows_of_piece
from jaxpar.mesh.parameters import ParamSpec, Tree
from jaxpar.mesh.rules import axes_of_dim
from jaxpar.optim import Optimizer, OptimizerState, clip, make_optimizer
from jaxpar.optim.schedule import Schedule


class WeightState(NamedTuple):
    """A weight and what its rule keeps."""

    master: Float[Array, "*shard"]
    optimizer: OptimizerState
    """Of this weight alone."""


class UpdateFacts(NamedTuple):
    """What the update of each weight must know of the whole step."""

    norm: Float[Array, ""]
    """Of the gradient, before clipping."""
    finite: Bool[Array, ""]
    """Whether there is an update at all."""
    applied: Int[Array, ""]
    """Updates before this one."""


@dataclass(frozen=True)
class WeightUpdate:
    """The optimizer's update of one weight, bit for bit as in the update of all of them."""

    optimizer: Optimizer
    clip_norm: float | None
    by_rows: bool
    """Whether rows of the first dim may be updated by themselves."""
    least_rows: int
    """Fewer rows at a time would cost as much as these."""

    def __call__(self, state: WeightState, gradient: Float[Array, "*shard"], facts: UpdateFacts) -> WeightState:
        """The state after a step; the same bits where the step is not finite.

        The barriers keep XLA from fusing the update with what is around it: whether a product and a sum become one
        operation, with one rounding, would otherwise depend on where the state rests.
        """
        state, gradient, facts = lax.optimization_barrier((state, gradient, facts))
        gradient = clip(gradient, facts.norm, self.clip_norm)
        master, optimizer, _ = self.optimizer.update(gradient, state.optimizer, state.master, facts.applied)
        new = WeightState(master, optimizer)
        return lax.optimization_barrier(jax.tree.map(lambda a, b: jnp.where(facts.finite, a, b), new, state))

    def rows(self, state: WeightState) -> int | None:
        """Rows of a piece of `state` (arrays or shapes of one device's part); None where it has to be whole."""
        return rows_of_piece(state, self.least_rows) if self.by_rows else None


def weight_updates(
    config: OptimizerConfig,
    *,
    steps: int,
    moments: str,
    specs: Tree,
    layout: Tree,
    sizes: AxisSizes,
    fraction: Schedule | None = None,
) -> list[WeightUpdate]:
    """One for each leaf of `specs`; arguments as for `make_optimizer`."""
    described, structure = jax.tree.flatten(specs)

    def one(spec: ParamSpec, where: PartitionSpec) -> WeightUpdate:
        optimizer = make_optimizer(config, steps=steps, moments=moments, specs=spec, layout=where, fraction=fraction)
        group = prod(sizes[axis] for dim in range(1, len(spec.shape)) for axis in axes_of_dim(where, dim))
        # Adafactor's means are over a whole matrix, and of a part of the layers XLA would add them in another order.
        # Muon's ranks each take a share of the layers.
        least = group if config.name == "muon" and spec.matrix else 1
        return WeightUpdate(optimizer, config.clip_norm, config.name != "adafactor", least)

    return [one(*leaf) for leaf in zip(described, structure.flatten_up_to(layout), strict=True)]


def weight_states(master: Tree, optimizer: OptimizerState) -> list[WeightState]:
    """The state of each weight by itself, in the order of the leaves of `master`."""
    weights, structure = jax.tree.flatten(master)
    nothing = [None] * len(weights)
    parts = [nothing if part is None else structure.flatten_up_to(part) for part in optimizer]
    return [WeightState(leaf, OptimizerState(*state)) for leaf, *state in zip(weights, *parts, strict=True)]


def joined(states: list[WeightState], structure: Any, *, average: bool) -> tuple[Tree, OptimizerState]:
    """The inverse of `weight_states`, given the structure of the master weights and whether there is an average."""
    master = structure.unflatten([state.master for state in states])
    first, second, mean = (structure.unflatten([state.optimizer[part] for state in states]) for part in range(3))
    return master, OptimizerState(first, second, mean if average else None)
