"""A step on islands: each takes a local step, and the outer optimizer updates the weights that they share.

The only messages between islands are those of outer gradients. With `islands.delay` the message depends on nothing of
the step that it is sent in, so that it runs beside the step's forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jax.tree_util import KeyPath
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config.axes import ISLANDS
from jaxpar.layout.islands import EagerState, OuterState, entered, left, stacked, with_eager, without_eager
from jaxpar.layout.state import TrainState
from jaxpar.layout.step_arguments import StepArguments
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.collectives import gather_from_islands, sum_over_islands
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.parameters import Weights
from jaxpar.mesh.rules import axes_of_dim
from jaxpar.model.decoder import Batch
from jaxpar.optim.outer import (
    OuterArguments,
    eager_update,
    fragment_sent,
    from_wire,
    is_sent,
    mixed,
    outer_gradient,
    outer_update,
    to_wire,
)
from jaxpar.training.residency.weight_update import Measure, Measured, UpdateFacts

type Steps = Int[Array, ""]
type Rows = Float[Array, "rows ..."]
type Update = Callable[[TrainState, Weights, UpdateFacts], TrainState]


@dataclass(frozen=True)
class IslandStep:
    """The step of `OnDevice.train` on islands, on the parts of one device."""

    layout: StepLayout
    measure: Measure
    updated: Update

    def __call__(self, state: TrainState, batch: Batch, arguments: StepArguments) -> tuple[TrainState, Any]:
        """The state of all islands after a step, and the metrics of each."""
        island, outer = entered(state)
        if self.layout.config.islands.eager:
            return self._eager_step(island, outer, batch, arguments)
        delay, done = self.layout.config.islands.delay, state.step + 1
        measure = lambda: self.measure(island, batch, arguments)
        if delay:
            gradient = lambda: self._gradient(outer.weights, island.master, state.step)
            measured, message = self._beside(measure, gradient, outer, state.step)
            new = self._after(island, measured)
            outer = self._outer(outer, lambda: message, state.step, arguments.outer)
        else:
            measured = measure()
            new = self._after(island, measured)
            message = lambda: self._message(self._gradient(outer.weights, new.master, done))
            outer = self._outer(outer, message, done, arguments.outer)
        mix = lambda master: self._mixed(master, outer, done - delay, arguments.outer)
        new = new._replace(master=self._if_sent(done - delay, mix, new.master))
        return left(new, outer), stacked(measured.metrics)

    def _eager_step(
        self, island: TrainState, outer: OuterState, batch: Batch, arguments: StepArguments
    ) -> tuple[TrainState, Any]:
        """With `islands.eager`: the island takes its outer gradient before a step, which runs beside its message."""
        island, eager = without_eager(island)
        master, eager, gradient = self._started(island.master, eager, outer, island.step, arguments.outer)
        island = island._replace(master=master)
        measure = lambda: self.measure(island, batch, arguments)
        measured, message = self._beside(measure, lambda: gradient, outer, island.step)
        new = with_eager(self._after(island, measured), eager)
        return left(new, self._outer(outer, lambda: message, island.step, arguments.outer)), stacked(measured.metrics)

    def _after(self, island: TrainState, measured: Measured) -> TrainState:
        """The island after the update of its optimizer."""
        new = self.updated(island, measured.gradients, measured.facts)
        return measured.following._replace(master=new.master, optimizer=new.optimizer)

    # ---- when

    @property
    def _every(self) -> int:
        assert self.layout.config.islands.every is not None, "islands exchange weights"
        return self.layout.config.islands.every

    @property
    def _fragments(self) -> int:
        return self.layout.config.islands.fragments

    def _sent(self, step: Steps) -> Bool[Array, ""]:
        return jnp.asarray(is_sent(step, self._every, self._fragments))

    def _if_sent[Tree](self, step: Steps, change: Callable[[Tree], Tree], tree: Tree) -> Tree:
        """`change(tree)` where a fragment is sent after `step` steps, else the tree; the same on all devices."""
        alike = lambda old: jax.tree.map(lambda new, old: new.astype(old.dtype), change(old), old)
        return lax.cond(self._sent(step), alike, lambda tree: tree, tree)

    def _beside(
        self, measure: Callable[[], Measured], gradient: Callable[[], list[Rows]], outer: OuterState, step: Steps
    ) -> tuple[Measured, list[Rows]]:
        """Forward and backward with the message of the fragment that was taken before them, if one was.

        A collective in a separate branch would not run beside what is outside of it, so the branches have both; there
        is one where each step sends.
        """
        send = lambda: (measure(), self._message(gradient()))
        nothing = lambda: (measure(), jax.tree.map(jnp.zeros_like, self._taken(outer.weights, step)))
        always = self._every == self._fragments
        measured, message = send() if always else lax.cond(self._sent(step), send, nothing)
        # XLA starts a message as late as what reads it allows: nothing does before the backward is done.
        message, gradients = lax.optimization_barrier((message, measured.gradients))
        return measured._replace(gradients=gradients), message

    # ---- what

    def _gradient(self, start: Weights, end: Weights, step: Steps) -> list[Rows]:
        """This island's outer gradient of the fragment that is taken after `step` steps."""
        with jax.named_scope("outer_gradient"):
            each = zip(self._taken(start, step), self._taken(end, step), strict=True)
            return [outer_gradient(shared, local) for shared, local in each]

    def _message(self, gradient: list[Rows]) -> list[Rows]:
        """The mean over islands of outer gradients."""
        with jax.named_scope("outer_gradient"):
            return [_mean(rows, self.layout.config.islands.wire) for rows in gradient]

    def _started(
        self, master: Weights, eager: EagerState, outer: OuterState, step: Steps, arguments: OuterArguments
    ) -> tuple[Weights, EagerState, list[Rows]]:
        """An island's weights at the start of a round of the fragment that was taken before this step, if one was, and
        its outer gradient."""
        nesterov, islands = self.layout.config.islands.outer.nesterov, self.layout.plan.axes.islands

        def started(master: Weights, eager: EagerState) -> tuple[Weights, EagerState, list[Rows]]:
            gradient = self._gradient(eager.start, master, step)
            each = zip(self._taken(outer.weights, step), self._taken(eager.momentum, step), gradient, strict=True)
            new = [eager_update(*one, arguments, nesterov, islands) for one in each]
            weights, momentum = (list(rows) for rows in zip(*new, strict=True))
            eager = EagerState(self._put(eager.start, weights, step), self._put(eager.momentum, momentum, step))
            return self._put(master, weights, step), eager, gradient

        nothing = lambda master, eager: (master, eager, jax.tree.map(jnp.zeros_like, self._taken(master, step)))
        return lax.cond(self._sent(step), started, nothing, master, eager)

    def _outer(
        self, outer: OuterState, message: Callable[[], list[Rows]], step: Steps, arguments: OuterArguments
    ) -> OuterState:
        """The outer state after the mean outer gradient of the fragment that is taken after `step` steps, if one is."""
        nesterov = self.layout.config.islands.outer.nesterov

        def updated(outer: OuterState) -> OuterState:
            each = zip(self._taken(outer.weights, step), self._taken(outer.momentum, step), message(), strict=True)
            new = [outer_update(*one, arguments, nesterov) for one in each]
            return OuterState(
                *(self._put(old, rows, step) for old, rows in zip(outer, zip(*new, strict=True), strict=True))
            )

        return self._if_sent(step, updated, outer)

    def _mixed(self, master: Weights, outer: OuterState, step: Steps, arguments: OuterArguments) -> Weights:
        each = zip(self._taken(master, step), self._taken(outer.weights, step), strict=True)
        return self._put(master, [mixed(local, shared, arguments.mix) for local, shared in each], step)

    # ---- fragments

    def _taken(self, weights: Weights, step: Steps) -> list[Rows]:
        """The rows of each weight in the fragment of `step`, and zeros in place of those that a device lacks."""
        leaves = jax.tree.leaves(weights)
        if self._fragments == 1:
            return leaves
        take = lambda leaf, rows: jnp.take(leaf, rows, axis=0, mode="fill", fill_value=0)
        return [take(leaf, rows) for leaf, rows in zip(leaves, self._rows(leaves, step), strict=True)]

    def _put(self, weights: Weights, new: Sequence[Rows], step: Steps) -> Weights:
        """`weights` with other rows in the fragment of `step`."""
        leaves, structure = jax.tree.flatten(weights)
        if self._fragments == 1:
            return structure.unflatten(new)
        each = zip(leaves, self._rows(leaves, step), new, strict=True)
        return structure.unflatten([leaf.at[rows].set(part, mode="drop") for leaf, rows, part in each])

    def _rows(self, leaves: list[Rows], step: Steps) -> list[Int[Array, " rows"]]:
        """Indices of this device's rows of each weight in the fragment of `step`; beyond the last one for none."""
        fragment = jnp.asarray(fragment_sent(step, self._every, self._fragments))

        def rows(leaf: Rows, where: PartitionSpec, table: np.ndarray | None) -> Int[Array, " rows"]:
            if table is not None:
                return jnp.asarray(table)[lax.axis_index("pipe"), fragment]
            first = lax.axis_index(axes_of_dim(where, 0)) * leaf.shape[0] if axes_of_dim(where, 0) else 0
            most = -(-leaf.shape[0] // self._fragments)
            return (fragment - first) % self._fragments + self._fragments * jnp.arange(most)

        return [rows(*each) for each in zip(leaves, *self._tables, strict=True)]

    @cached_property
    def _tables(self) -> tuple[list[PartitionSpec], list[np.ndarray | None]]:
        """The partition of each weight, and the rows [pipeline rank, fragment, row] of those that are stacked."""
        leaves, structure = jax.tree_util.tree_flatten_with_path(self.layout.trained)
        stacks = [getattr(path[0], "key", None) == LAYERS for path, _ in leaves]
        tables = [self._table(path) if stack else None for stack, (path, _) in zip(stacks, leaves, strict=True)]
        return structure.flatten_up_to(self.layout.master), tables

    def _table(self, path: KeyPath) -> np.ndarray:
        numbers = self.layout.order.stack_at(path).numbers.reshape(self.layout.plan.axes.pipe, -1)
        each = [[np.flatnonzero(row % self._fragments == f) for f in range(self._fragments)] for row in numbers]
        most = max(len(rows) for rank in each for rows in rank)
        pad = lambda rows: np.pad(rows, (0, most - len(rows)), constant_values=numbers.shape[1])
        return np.array([[pad(rows) for rows in rank] for rank in each], np.int32)


def _mean(gradient: Rows, wire: str | None) -> Rows:
    """The mean over islands, the same bits on all of them; codes are summed in float32."""
    islands = lax.axis_size(ISLANDS)
    if wire is None:
        return sum_over_islands(gradient) / islands
    rows = gradient.reshape(1 if gradient.ndim == 1 else len(gradient), -1)
    sent = gather_from_islands(to_wire(rows, wire)).reshape(islands * len(rows), -1)
    each = from_wire(sent, rows.shape[1], wire).reshape(islands, *gradient.shape)
    return each.sum(axis=0) / islands
