"""What a run carries from step to step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Int

from jaxpar.mesh.parameters import Tree
from jaxpar.optim.optimizer import Optimizer
from jaxpar.precision.loss_scale import LossScale


class TrainState(NamedTuple):
    """Everything that a step reads and writes, and that a checkpoint holds."""

    master: Tree
    """Weights in optimizer placement and master dtype; all other placements of a step derive from them."""
    optimizer: Any
    """Moments, laid out like the master weights."""
    step: Int[Array, ""]
    """Batches consumed: the next batch is a function of it."""
    applied: Int[Array, ""]
    """Updates applied: `step` less the skipped ones."""
    skipped_in_row: Int[Array, ""]
    """Steps skipped since the last one applied, because loss or gradient was not finite."""
    loss_scale: LossScale


def state_layout(weights: Tree, optimizer: Optimizer) -> TrainState:
    """The partition of every part of the state, given that of the master weights."""
    whole: Any = PartitionSpec()
    return TrainState(weights, optimizer.state_layout(weights), whole, whole, whole, LossScale(whole, whole))


def initial_state(master: Tree, optimizer: Optimizer, loss_scale: LossScale) -> TrainState:
    """The state before the first step."""
    zero = jnp.int32(0)
    return TrainState(master, optimizer.init(master), zero, zero, zero, loss_scale)
