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
from jaxpar.layout.islands import OuterState, entered, left, stacked
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
    fragment_sent,
    from_wire,
    is_sent,
    mixed,
    outer_gradient,
    outer_update,
    to_wire,
)
from jaxpar.training.residency.weight_update import Measure, UpdateFacts

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
        delay, done = self.layout.config.islands.delay, state.step + 1
        measure = lambda: self.measure(island, batch, arguments)
        if delay:
            measured, message = self._beside(measure, island.master, outer, state.step)
            # XLA starts a message as late as what reads it allows: nothing does before the backward is done.
            message, gradients = lax.optimization_barrier((message, measured.gradients))
            measured = measured._replace(gradients=gradients)
        else:
            measured, message = measure(), None
        new = self.updated(island, measured.gradients, measured.facts)
        island = measured.following._replace(master=new.master, optimizer=new.optimizer)
        if message is not None:
            outer = self._if_sent(state.step, lambda outer: self._outer(outer, message, state.step, arguments), outer)
        else:
            send = lambda outer: self._outer(outer, self._message(island.master, outer, done), done, arguments)
            outer = self._if_sent(done, send, outer)
        mix = lambda master: self._mixed(master, outer, done - delay, arguments.outer)
        island = island._replace(master=self._if_sent(done - delay, mix, island.master))
        return left(island, outer), stacked(measured.metrics)

    # ---- when

    @property
    def _every(self) -> int:
        assert self.layout.config.islands.every is not None, "islands exchange weights"
        return self.layout.config.islands.every

    @property
    def _fragments(self) -> int:
        return self.layout.config.islands.fragments

    def _sent(self, step: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.asarray(is_sent(step, self._every, self._fragments))

    def _if_sent[Tree](self, step: Int[Array, ""], change: Callable[[Tree], Tree], tree: Tree) -> Tree:
        """`change(tree)` where a fragment is sent after `step` steps, else the tree; the same on all devices."""
        alike = lambda old: jax.tree.map(lambda new, old: new.astype(old.dtype), change(old), old)
        return lax.cond(self._sent(step), alike, lambda tree: tree, tree)

    def _beside[Measured](
        self, measure: Callable[[], Measured], master: Weights, outer: OuterState, step: Int[Array, ""]
    ) -> tuple[Measured, list[Rows]]:
        """Forward and backward with the message of the fragment that was taken before them, if one was.

        A collective in a separate branch would not run beside what is outside of it, so the branches have both; there
        is one where each step sends.
        """
        send = lambda: (measure(), self._message(master, outer, step))
        if self._every == self._fragments:
            return send()
        nothing = lambda: (measure(), jax.tree.map(jnp.zeros_like, self._taken(outer.weights, step)))
        return lax.cond(self._sent(step), send, nothing)

    # ---- what

    def _message(self, master: Weights, outer: OuterState, step: Int[Array, ""]) -> list[Rows]:
        """The mean over islands of the outer gradients of the fragment that is taken after `step` steps."""
        with jax.named_scope("outer_gradient"):
            each = zip(self._taken(outer.weights, step), self._taken(master, step), strict=True)
            wire = self.layout.config.islands.wire
            return [_mean(outer_gradient(shared, local), wire) for shared, local in each]

    def _outer(
        self, outer: OuterState, message: list[Rows], step: Int[Array, ""], arguments: StepArguments
    ) -> OuterState:
        each = zip(self._taken(outer.weights, step), self._taken(outer.momentum, step), message, strict=True)
        nesterov = self.layout.config.islands.outer.nesterov
        new = [outer_update(*one, arguments.outer, nesterov) for one in each]
        return OuterState(
            *(self._put(old, rows, step) for old, rows in zip(outer, zip(*new, strict=True), strict=True))
        )

    def _mixed(self, master: Weights, outer: OuterState, step: Int[Array, ""], arguments: OuterArguments) -> Weights:
        each = zip(self._taken(master, step), self._taken(outer.weights, step), strict=True)
        return self._put(master, [mixed(local, shared, arguments.mix) for local, shared in each], step)

    # ---- fragments

    def _taken(self, weights: Weights, step: Int[Array, ""]) -> list[Rows]:
        """The rows of each weight in the fragment of `step`, and zeros in place of those that a device lacks."""
        leaves = jax.tree.leaves(weights)
        if self._fragments == 1:
            return leaves
        take = lambda leaf, rows: jnp.take(leaf, rows, axis=0, mode="fill", fill_value=0)
        return [take(leaf, rows) for leaf, rows in zip(leaves, self._rows(leaves, step), strict=True)]

    def _put(self, weights: Weights, new: Sequence[Rows], step: Int[Array, ""]) -> Weights:
        """`weights` with other rows in the fragment of `step`."""
        leaves, structure = jax.tree.flatten(weights)
        if self._fragments == 1:
            return structure.unflatten(new)
        each = zip(leaves, self._rows(leaves, step), new, strict=True)
        return structure.unflatten([leaf.at[rows].set(part, mode="drop") for leaf, rows, part in each])

    def _rows(self, leaves: list[Rows], step: Int[Array, ""]) -> list[Int[Array, " rows"]]:
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
