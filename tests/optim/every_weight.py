"""The updates of all weights of a tree, one after the other."""

from __future__ import annotations

from typing import Any

import jax

from jaxpar.layout.state import weight_states
from jaxpar.optim import Optimizer, OptimizerArguments, OptimizerState


def update_every_weight(
    optimizer: Optimizer,
    arguments: OptimizerArguments,
    gradients: Any,
    state: OptimizerState,
    master: Any,
    step: jax.Array,
) -> tuple[Any, OptimizerState]:
    """(new master weights, new state) of trees, each weight updated by its own `WeightOptimizer`."""
    arguments = arguments.at(step)
    leaves, structure = jax.tree.flatten(master)
    states = [own.optimizer for own in weight_states(master, state)]
    each = zip(optimizer.weights, structure.flatten_up_to(gradients), states, leaves, strict=True)
    updated = [weight.update(gradient, own, leaf, step, arguments) for weight, gradient, own, leaf in each]
    weights, states = zip(*updated, strict=True)
    mu, nu, average = (structure.unflatten(part) for part in zip(*states, strict=True))
    return structure.unflatten(weights), OptimizerState(mu, nu, None if state.average is None else average)
