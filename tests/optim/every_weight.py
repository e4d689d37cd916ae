"""The updates of all weights of a tree, one after the other."""

from typing import Any

import jax

from jaxpar.optim import Optimizer, OptimizerArguments, OptimizerState
from jaxpar.optim.optimizer import by_name, by_weight


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
    states = by_weight(state, structure)
    each = zip(optimizer.weights, structure.flatten_up_to(gradients), states, leaves, strict=True)
    updated = [weight.update(gradient, own, leaf, step, arguments) for weight, gradient, own, leaf in each]
    weights, states = zip(*updated, strict=True)
    return structure.unflatten(weights), by_name(states, structure)
