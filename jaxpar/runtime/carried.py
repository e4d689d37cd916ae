"""State that a step hands on to the next one, beside weights and moments.

A feature with such state subclasses `Carried` and is listed in `jaxpar.layout.state`. The step calls every entry in
turn and names none of them; a checkpoint saves each under its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, PyTree

from jaxpar.mesh.parameters import Weights

REPLICATED: PyTree[PartitionSpec] = PartitionSpec()
"""The partition of state that is the same on every device."""


class Outcome(NamedTuple):
    """The results of a step's backward that the next state is computed from. The same on every device."""

    finite: Bool[Array, ""]
    """Whether the update is applied."""
    loss: Float[Array, ""]
    """The loss of the step. NaN where there is no unmasked token."""
    grad_norm: Float[Array, ""]
    """Global norm of the gradient before clipping."""
    observed: PyTree[Array]
    """Statistics that the layers collected in their backward, over microbatches and ranks."""


class Limit(NamedTuple):
    """A number of each layer that a run warns of."""

    least: float
    """Smallest value that the run warns of."""
    meaning: str
    """The meaning of such a number and a remedy, as the end of a sentence about it."""


class StepWeights(NamedTuple):
    """The weights of a step in another form."""

    weights: Weights
    shared: Mapping[str, PyTree[Array]] = MappingProxyType({})
    """Arrays by name that layers read with them."""
    observed: PyTree[Array] = None
    """Statistics of the weights, to join to those of layers."""


class Carried[State](ABC):
    """One kind of carried state, and its effect on a step. The defaults have none.

    `init` is traced outside the step's map; all other functions are traced inside it, on the parts of one device.
    """

    name: str
    """The state's name in `TrainState.carried` and in checkpoints."""
    title: str
    """The state as messages name it."""
    saved_as: str = ""
    """A description of the state besides its shape. A run continues with saved state only if this is the same."""
    limits: Mapping[str, Limit] = MappingProxyType({})
    """Limits of numbers of layers, by their name in `record`."""
    converts: bool = False
    """Whether `weights` has any effect; at most one feature of a run does."""

    @abstractmethod
    def init(self) -> State:
        """The state before the first step, as global arrays."""

    def partitions(self) -> PyTree[PartitionSpec]:
        """A `PartitionSpec` for each leaf of the state."""
        return REPLICATED

    def loss_scale(self, state: State) -> Float[Array, ""] | float:
        """The factor of the loss in the backward. Gradients are divided by it."""
        del state
        return 1.0

    def shared(self, state: State) -> dict[str, PyTree[Array]]:
        """Arrays by name that the layers of every microbatch can read."""
        del state
        return {}

    def weights(self, master: Weights, shared: dict[str, PyTree[Array]]) -> StepWeights:
        """The weights that a step stores and gathers, from the master weights; `shared` is that of all features, and
        empty in an evaluation."""
        del shared
        return StepWeights(master)

    def accepts(self, observed: PyTree[Array]) -> Bool[Array, ""] | bool:
        """Whether the update may be applied, by what the layers observed."""
        del observed
        return True

    def next(self, state: State, outcome: Outcome) -> State:
        """The state after a step."""
        del outcome
        return state

    def metrics(self, state: State, outcome: Outcome) -> PyTree[Array]:
        """The metrics of a step, the same on every device; `state` is that before the step. None if there are none."""
        del state, outcome

    def record(self, metrics: PyTree[Array]) -> dict[str, object]:
        """Plain values by name that a logged step records of its `metrics`; a value of each layer is a mapping from the
        layer's number, as a string."""
        del metrics
        return {}


def select_tree[Tree](condition: Bool[Array, ""], yes: Tree, no: Tree) -> Tree:
    """The tree `yes` where the condition holds, else `no`."""
    return jax.tree.map(lambda yes, no: jnp.where(condition, yes, no), yes, no)
