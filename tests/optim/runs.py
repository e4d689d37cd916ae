"""One optimizer run on a mesh, shared by the tests of the rules."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpar.mesh.parameters import map_specs
from jaxpar.optim import Optimizer, OptimizerArguments, OptimizerState, make_optimizer, optimizer_arguments
from jaxpar.optim.optimizer import states_by_name, states_by_weight
from tests.traced import mesh_of


def update_every_weight(
    optimizer: Optimizer,
    arguments: OptimizerArguments,
    gradients: Any,
    state: OptimizerState,
    master: Any,
    step: jax.Array,
) -> tuple[Any, OptimizerState]:
    """(new master weights, new state) of trees, each weight updated by its own `WeightOptimizer`."""
    arguments = arguments.for_step(step)
    leaves, structure = jax.tree.flatten(master)
    states = states_by_weight(state, structure)
    each = zip(optimizer.weights, structure.flatten_up_to(gradients), states, leaves, strict=True)
    updated = [weight.update(gradient, own, leaf, step, arguments) for weight, gradient, own, leaf in each]
    weights, states = zip(*updated, strict=True)
    return structure.unflatten(weights), states_by_name(states, structure)


def shardings(mesh: Mesh, layout):
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), layout)


def run_optimizer(config, specs, layout, gradients, master, *, mesh=None, moments="float32"):
    """Apply `gradients` (a list of trees of NumPy arrays) one after the other; returns the weights and the state."""
    mesh = mesh or mesh_of()
    optimizer = make_optimizer(config, moments=moments, specs=specs, layout=layout)
    states = optimizer.state_layout(layout)
    update = jax.jit(
        jax.shard_map(
            partial(update_every_weight, optimizer, optimizer_arguments(config, 100)),
            mesh=mesh,
            in_specs=(layout, states, layout, PartitionSpec()),
            out_specs=(layout, states),
        )
    )
    weights = jax.device_put(master, shardings(mesh, layout))
    state = jax.jit(optimizer.init, out_shardings=shardings(mesh, states))(weights)
    for step, gradient in enumerate(gradients):
        gradient = jax.device_put(gradient, shardings(mesh, layout))
        weights, state = update(gradient, state, weights, jnp.int32(step))
    return jax.device_get((weights, state))


def make_trees(specs, count: int, seed: int = 0) -> list:
    """`count` trees of float32 normal values, shaped as `specs` say."""
    generator = np.random.default_rng(seed)
    return [
        map_specs(lambda spec: generator.standard_normal(spec.shape).astype(np.float32), specs) for _ in range(count)
    ]
