"""The state that a run carries from step to step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from jaxpar.mesh.parameters import Partitions, Weights, merge
from jaxpar.optim.optimizer import Optimizer, OptimizerState
from jaxpar.precision.history import History
from jaxpar.precision.loss_scale import LossScale

FORMER_NAMES = {"optimizer/mu": "optimizer/first", "optimizer/nu": "optimizer/second"}
"""Names of parts of the state in checkpoints of earlier releases."""


class TrainState(NamedTuple):
    """Everything that a step reads and writes, and that a checkpoint holds."""

    master: Weights
    """Trained weights in optimizer placement and master dtype; all other placements in a step are derived from them."""
    frozen: Weights
    """Frozen weights in storage placement and dtype. A checkpoint has none: they are those of another model."""
    optimizer: OptimizerState
    """Moments, sharded like the master weights."""
    step: Int[Array, ""]
    """Batches consumed: the next batch is a function of it."""
    applied: Int[Array, ""]
    """Updates applied: `step` minus the skipped ones."""
    skipped_in_row: Int[Array, ""]
    """Steps skipped since the last applied one, because loss or gradient was not finite."""
    loss_scale: LossScale
    matmul_history: History | None = None
    """Largest magnitudes of tensors of quantised matmuls, under delayed scaling."""
    residual: Weights | None = None
    """What quantised messages lacked of gradients so far (`jaxpar.mesh.error_feedback`), under error feedback."""


def state_layout(
    weights: Partitions, frozen: Partitions, optimizer: Optimizer, residual: Partitions | None, *, history: bool
) -> TrainState:
    """The partition of every part of the state, given those of the master weights, the frozen ones and the residual.

    `history` is whether matmuls are scaled by earlier steps.
    """
    whole: Any = PartitionSpec()
    scale, own = LossScale(whole, whole), whole if history else None
    return TrainState(weights, frozen, optimizer.state_layout(weights), whole, whole, whole, scale, own, residual)


def initial_state(
    master: Weights, frozen: Weights, optimizer: Optimizer, loss_scale: LossScale, history: History | None,
    residual: Weights | None,
) -> TrainState:  # fmt: skip
    """The state before the first step."""
    zero = jnp.int32(0)
    return TrainState(master, frozen, optimizer.init(master), zero, zero, zero, loss_scale, history, residual)


def all_weights(state: TrainState) -> Weights:
    """The weights of the whole model, trained and frozen."""
    return merge(state.frozen, state.master)


def without_frozen(state: TrainState) -> TrainState:
    """What a checkpoint has of a state."""
    return state._replace(frozen={})


class WeightState(NamedTuple):
    """A weight and the state that its rule keeps."""

    master: Float[Array, "*shard"]
    optimizer: OptimizerState
    """The optimizer state of this weight alone."""


def weight_states(master: Weights, optimizer: OptimizerState) -> list[WeightState]:
    """The state of each weight, in the order of the leaves of `master`."""
    weights, structure = jax.tree.flatten(master)
    nothing = [None] * len(weights)
    parts = [nothing if part is None else structure.flatten_up_to(part) for part in optimizer]
    return [WeightState(leaf, OptimizerState(*state)) for leaf, *state in zip(weights, *parts, strict=True)]


def join_weights(states: list[WeightState], like: TrainState) -> TrainState:
    """The inverse of `weight_states`: `like` with other master weights and another optimizer state."""
    structure = jax.tree.structure(like.master)
    master = structure.unflatten([state.master for state in states])
    mu, nu, mean = (structure.unflatten([state.optimizer[part] for state in states]) for part in range(3))
    average = None if like.optimizer.average is None else mean
    return like._replace(master=master, optimizer=OptimizerState(mu, nu, average))
