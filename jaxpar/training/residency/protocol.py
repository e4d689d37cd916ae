"""The protocol between a step and the memory in which its state is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from jaxpar.layout.state import TrainState
from jaxpar.layout.step_arguments import StepArguments
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch
from jaxpar.training.residency.saved_state import SavedState
from jaxpar.training.residency.weight_update import UpdateFacts


class Measured(NamedTuple):
    """The results of a step before its update."""

    gradients: Weights
    """In optimizer placement, in the residency's own form."""
    facts: UpdateFacts
    following: TrainState
    """The state after the step, without master weights and optimizer state."""
    metrics: Any


type Measure = Callable[[TrainState, Batch, StepArguments], Measured]
"""Forward, backward and norm of a step, on the parts of one device."""


class Residency(Protocol):
    """Storage of master weights and moments between steps, and their transfer to the device and back.

    `marked`, `opened`, `reduced`, `squares` and `whole` run inside the step's map,
    on the parts of one device; the others outside.
    """

    layout: StepLayout
    mesh: Mesh
    asynchronous: bool
    """Whether `advance` returns before the devices are done."""

    def marked(self, master: Weights) -> Weights:
        """The weights passed to a function, each typed by the memory that it is in."""
        ...

    def opened(self, master: Weights, *, layers_later: bool = False) -> tuple[Weights, Weights]:
        """Weights in storage placement, from the weights passed to the step, with the frozen ones among them, and zeros
        in gradient placement for those that are trained; a `CodedStack` is on the device. With `layers_later`, layers
        stay in optimizer placement."""
        ...

    def reduced(self, accumulated: Weights, scale: Float[Array, ""]) -> Weights:
        """The accumulators of a step in optimizer placement, divided by the loss scale."""
        ...

    def squares(self, gradients: Weights) -> Weights:
        """Sum of the squares of each weight's gradient: [rows] of a stacked weight, else a scalar."""
        ...

    def whole(self, gradients: Weights) -> Weights:
        """Gradients as arrays on the device."""
        ...

    def compile_initial(self) -> None:
        """Compile the program of `initial_state`, if that is one program; any thread may call this."""
        ...

    def initial_state(self) -> TrainState:
        """The state before the first step, made shard by shard; the weights are the same bits on every mesh."""
        ...

    def adopted(self, state: TrainState) -> TrainState:
        """A restored state in the form that steps take."""
        ...

    def with_weights(self, state: TrainState, weights: Any) -> TrainState:
        """`state` with other master weights, and the moving average of them if it has one. `state` is used up.

        `weights` has in place of each weight a function that returns a part of it; this process calls it for the parts
        that its devices hold, one weight after the other.
        """
        ...

    def train(self, measure: Measure, metrics: Any) -> Any:
        """The jitted step, of `abstract_input`, a batch and arguments; `metrics` has the partition of each metric."""
        ...

    def abstract_input(self) -> TrainState:
        """Shapes, dtypes and shardings of what the jitted step reads of the state."""
        ...

    def advance(self, train: Any, state: TrainState, batch: Batch, arguments: StepArguments) -> tuple[TrainState, Any]:
        """The state and the metrics after a step with `train`, compiled or not."""
        ...

    def readable(self, weights: Weights) -> Weights:
        """Master weights, or their average, of a state, as arrays that evaluation reads."""
        ...

    def arrays(self, state: TrainState) -> dict[str, Sequence[jax.Array]]:
        """The arrays of `state` that are in memory, by purpose."""
        ...

    def saved(self) -> SavedState:
        """The state without frozen weights in the form of a checkpoint."""
        ...
