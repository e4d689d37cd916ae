"""A step on one device: forward, backward, norm; and evaluation. Runs inside the step's map."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt

from jaxpar.config.axes import TOKEN_AXES
from jaxpar.config.parts import OPTIMIZERS
from jaxpar.layout.choices.pipeline import forward_program
from jaxpar.layout.stages import stages_of
from jaxpar.layout.state import TrainState, all_weights
from jaxpar.layout.step_arguments import StepArguments
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.axes import AXES, assert_varies_over
from jaxpar.mesh.collectives import reduce_max, reduce_sum
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch
from jaxpar.model.head import vocab_axes
from jaxpar.optim.norm import global_norm
from jaxpar.pipeline.execution.executor import evaluate, execute
from jaxpar.pipeline.execution.inputs import Seeds
from jaxpar.runtime.batch import CARRIED, SEED, UPDATES
from jaxpar.runtime.carried import Outcome, StepWeights, select_tree
from jaxpar.runtime.passes import AUXILIARY_LOSS
from jaxpar.training.residency.on_device import OnDevice
from jaxpar.training.residency.weight_update import Measured, UpdateFacts


class StepMetrics(NamedTuple):
    """The metrics of one step, the same on every device."""

    loss: Float[Array, ""]
    """The objective's sum over the global batch divided by its count. NaN where there is no unmasked token."""
    grad_norm: Float[Array, ""]
    """Global norm of the gradient before clipping."""
    learning_rate: Float[Array, ""]
    matrix_learning_rate: Float[Array, ""] | None
    """Learning rate of the layers' matrices; None where it is `learning_rate`."""
    tokens: Float[Array, ""]
    """Unmasked tokens in the global batch. Without any, nothing but the step's number changes."""
    finite: Bool[Array, ""]
    """Whether loss and gradient are finite: if so, and with unmasked tokens, the update was applied."""
    skipped_in_row: Int[Array, ""]
    loss_scale: Float[Array, ""]
    squares: Weights
    """Sum of the squares of each weight's gradient before clipping: [rows] of a stacked weight, else a scalar."""
    report: dict[str, Float[Array, ""]]
    """The layers' own metrics, summed over layers and tokens, per token that does not pad a row, masked or not; and the
    objective's, divided by its count, NaN like `loss`."""
    carried: dict[str, PyTree[Array]]
    """The metrics of features with carried state, by name."""


class StepGradients(NamedTuple):
    """The results of forward and backward."""

    loss: Float[Array, ""]
    gradients: Weights
    """The gradients, in optimizer placement and in the form of the residency."""
    tokens: Float[Array, ""]
    """Unmasked tokens in the global batch."""
    report: dict[str, Float[Array, ""]]
    observed: PyTree[Array]
    """Statistics that layers observed; None where they observe none."""


@dataclass(frozen=True)
class StepFunctions:
    """The functions of a step on one device's parts."""

    layout: StepLayout
    residency: OnDevice

    def gradients(self, state: TrainState, batch: Batch, seed: UInt[Array, ""]) -> StepGradients:
        """Forward and backward over all microbatches, with random draws of `seed`."""
        stages = stages_of(self.layout, train=True)
        shared = self._shared(state)
        weights, more, of_weights = self._weights(all_weights(state), shared)
        weights, accumulators = self.residency.opened(weights)
        unpadded = (batch["segments"] > 0).sum().astype(jnp.float32)
        local_count = self.layout.objective.count(batch)
        assert_varies_over(local_count, TOKEN_AXES, "the count of the objective")
        tokens, unpadded, count = reduce_sum(jnp.stack([batch["mask"].sum(), unpadded, local_count]), TOKEN_AXES)
        scale = self._loss_scale(state)
        loss_seed = scale / jnp.maximum(count, 1.0)
        seeds = Seeds(loss_seed, {AUXILIARY_LOSS: scale / jnp.maximum(unpadded, 1.0)})
        scalars = {UPDATES.name: state.applied, SEED: seed, CARRIED: {**shared, **more}}
        accumulated, reported, side = execute(self.layout.program, stages, weights, accumulators, batch, seeds, scalars)
        gradients = self.residency.reduced(accumulated, scale)
        count = jnp.where(tokens == 0, jnp.nan, jnp.maximum(count, 1.0))
        means = {name: self._sum(total) / count for name, total in reported.items()}
        loss = means.pop("loss")
        report = {name: reduce_sum(value, AXES) / jnp.maximum(unpadded, 1.0) for name, value in side.metrics.items()}
        observed = side.observed
        if observed is not None:  # one message, after all branches of the layers: see docs/decisions.md
            observed = reduce_max(observed if of_weights is None else jnp.maximum(observed, of_weights), AXES)
        return StepGradients(loss, gradients, tokens, report | means, observed)

    def _shared(self, state: TrainState) -> dict[str, PyTree[Array]]:
        """Arrays by name that carried state gives to the layers of every microbatch."""
        each = (kind.shared(state.carried[name]) for name, kind in self.layout.carried.items())
        return dict(item for arrays in each for item in arrays.items())

    def _loss_scale(self, state: TrainState) -> Float[Array, ""]:
        factors = (kind.loss_scale(state.carried[name]) for name, kind in self.layout.carried.items())
        return jnp.asarray(prod(factors), jnp.float32)

    def _weights(self, master: Weights, shared: dict[str, PyTree[Array]]) -> StepWeights:
        """The weights of a step in the form in which layers take them; `shared` is given by carried state."""
        for kind in self.layout.carried.values():
            if kind.converts:
                return kind.weights(self.residency.marked(master), shared)
        return StepWeights(master)

    def measured(self, state: TrainState, batch: Batch, arguments: StepArguments) -> Measured:
        """Gradients and the facts of the update; the state after the step, without what the update makes; metrics."""
        loss, gradients, tokens, report, observed = self.gradients(state, batch, arguments.seed)
        sums = self.residency.squares(gradients)
        norm = global_norm(sums, self.layout.squares)
        empty = tokens == 0
        finite = jnp.isfinite(norm) & (jnp.isfinite(loss) | empty)
        for kind in self.layout.carried.values():
            finite = finite & kind.accepts(observed)
        applies, idle = finite & ~empty, finite & empty
        outcome = Outcome(finite, loss, norm, observed)
        carried = {name: kind.next(state.carried[name], outcome) for name, kind in self.layout.carried.items()}
        carried = select_tree(idle, state.carried, carried)
        skipped = jnp.where(finite, 0, state.skipped_in_row + 1)
        following = state._replace(
            master=None,
            optimizer=None,
            step=state.step + 1,
            applied=state.applied + applies.astype(jnp.int32),
            skipped_in_row=jnp.where(idle, state.skipped_in_row, skipped),
            carried=carried,
        )
        optimizer = arguments.optimizer.for_step(state.applied)
        apart = OPTIMIZERS[self.layout.config.optimizer.name].matrix_rate
        matrix_rate = optimizer.matrix_learning_rate if apart else None
        each = {name: kind.metrics(state.carried[name], outcome) for name, kind in self.layout.carried.items()}
        of_features = {name: values for name, values in each.items() if values is not None}
        metrics = StepMetrics(
            loss, norm, optimizer.learning_rate, matrix_rate, tokens, finite, following.skipped_in_row,
            self._loss_scale(state), sums, report, of_features,
        )  # fmt: skip
        return Measured(gradients, UpdateFacts(norm, applies, state.applied, optimizer), following, metrics)

    def evaluate(self, weights: Weights, batch: Batch) -> tuple[dict[str, Float[Array, ""]], Float[Array, ""]]:
        """The sums of what the loss reports, and the objective's count of the batch."""
        stages = stages_of(self.layout, train=False)
        weights, shared, _ = self._weights(weights, {})
        weights, accumulators = self.residency.opened(weights)

        program = forward_program(self.layout.plan)
        loss = lambda x, microbatch: stages.loss(weights, accumulators, x, microbatch)[1]
        totals = evaluate(program, stages, weights, batch, loss, {CARRIED: {**shared}})
        count = reduce_sum(self.layout.objective.count(batch), TOKEN_AXES)
        return {name: self._sum(total) for name, total in totals.items()}, count

    def _sum(self, local: Float[Array, ""]) -> Float[Array, ""]:
        """The sum over tokens and pipeline stages of all ranks; ranks that split the vocabulary hold equal values."""
        alike = vocab_axes(self.layout.placements)
        return reduce_sum(local, [axis for axis in AXES if axis not in alike])
