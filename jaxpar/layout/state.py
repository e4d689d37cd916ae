"""The state that a run carries from step to step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from jaxpar.config import Config
from jaxpar.config.parts import feature
from jaxpar.config.plan import Plan
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.mesh.parameters import Partitions, Weights, merge
from jaxpar.mesh.placements import Placements
from jaxpar.optim.optimizer import Optimizer, OptimizerState, states_by_name, states_by_weight
from jaxpar.runtime.carried import REPLICATED, Carried
from jaxpar.runtime.loss_scale import loss_scaling


class TrainState(NamedTuple):
    """Everything that a step reads and writes, and that a checkpoint holds."""

    master: Weights
    """Trained weights in optimizer placement and master dtype; all other placements in a step are derived from them."""
    frozen: Weights
    """Frozen weights in storage placement and dtype. A checkpoint has none: they are those of another model."""
    optimizer: OptimizerState
    """Moments and other state of the update rules, by name, in optimizer placement; and the weights' average."""
    step: Int[Array, ""]
    """Batches consumed: the next batch is a function of it."""
    applied: Int[Array, ""]
    """Updates applied: `step` minus the skipped ones."""
    skipped_in_row: Int[Array, ""]
    """Steps skipped since the last applied one, because loss or gradient was not finite."""
    carried: dict[str, PyTree]
    """State that features carry from step to step, by `jaxpar.runtime.carried.Carried.name`."""


def state_layout(
    weights: Partitions, frozen: Partitions, optimizer: Optimizer, carried: Mapping[str, Carried[Any]]
) -> TrainState:
    """The partition of every part of the state, given those of the master weights and of the frozen ones."""
    steps = REPLICATED, REPLICATED, REPLICATED
    each = {name: kind.partitions() for name, kind in carried.items()}
    return TrainState(weights, frozen, optimizer.state_layout(weights), *steps, each)


def initial_state(
    master: Weights, frozen: Weights, optimizer: Optimizer, carried: Mapping[str, Carried[Any]]
) -> TrainState:
    """The state before the first step."""
    zero = jnp.int32(0)
    each = {name: kind.init() for name, kind in carried.items()}
    return TrainState(master, frozen, optimizer.init(master), zero, zero, zero, each)


def all_weights(state: TrainState) -> Weights:
    """The weights of the whole model, trained and frozen."""
    return merge(state.frozen, state.master)


def without_frozen(state: TrainState) -> TrainState:
    """The part of a state that a checkpoint saves: all but frozen weights."""
    return state._replace(frozen={})


class WeightState(NamedTuple):
    """A weight and the state that its rule keeps."""

    master: Float[Array, "*shard"]
    optimizer: dict[str, PyTree]
    """The optimizer state of this weight alone, by name."""


def weight_states(master: Weights, optimizer: OptimizerState) -> list[WeightState]:
    """The state of each weight, in the order of the leaves of `master`."""
    weights, structure = jax.tree.flatten(master)
    return [WeightState(*one) for one in zip(weights, states_by_weight(optimizer, structure), strict=True)]


def join_weights(states: list[WeightState], like: TrainState) -> TrainState:
    """The inverse of `weight_states`: `like` with other master weights and another optimizer state."""
    structure = jax.tree.structure(like.master)
    master = structure.unflatten([state.master for state in states])
    return like._replace(master=master, optimizer=states_by_name([state.optimizer for state in states], structure))


class CarriedRequest(NamedTuple):
    """Facts by which an entry of the registry decides whether its state is carried."""

    config: Config
    plan: Plan
    placements: Placements
    order: LayerOrder


CARRIED: list[Callable[[CarriedRequest], Carried[Any] | None]] = [
    lambda request: loss_scaling(request.config.precision),
    lambda request: feature("quantized_state")(*request) if request.config.precision.matmul else None,
]
"""One function for each feature; it returns None where a run does not have it. Others append theirs."""


def carried_of(request: CarriedRequest) -> dict[str, Carried[Any]]:
    """The carried state of a run, by name."""
    kinds = [kind for make in CARRIED if (kind := make(request)) is not None]
    assert len({kind.name for kind in kinds}) == len(kinds), "carried state has names of its own"
    return {kind.name: kind for kind in kinds}
