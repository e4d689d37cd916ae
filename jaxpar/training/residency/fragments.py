"""Fragments of weights that islands exchange: which rows of a weight they have, on the device or in host memory."""

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

from jaxpar.layout.step_layout import StepLayout
from jaxpar.memory.streaming import (
    DEVICE,
    is_on_host,
    map_row_pieces,
    map_taken_rows,
    replaced_rows,
    rows_of_piece,
    streamed,
)
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.parameters import Weights
from jaxpar.mesh.rules import axes_of_dim
from jaxpar.optim.outer import fragment_sent, is_sent

type Steps = Int[Array, ""]
type Rows = Float[Array, "rows ..."]
type Indices = Int[Array, " rows"]


@dataclass(frozen=True)
class Fragments:
    """The fragments of the weights of a layout, on the parts of one device.

    Weights in host memory pass through the device where rows of theirs are read or changed: those rows, of a weight of
    layers; of embedding, head and their norm, all rows in pieces.
    """

    layout: StepLayout

    @property
    def _every(self) -> int:
        assert self.layout.config.islands.every is not None, "islands exchange weights"
        return self.layout.config.islands.every

    @property
    def _fragments(self) -> int:
        return self.layout.config.islands.fragments

    @property
    def sends_each_step(self) -> bool:
        """Whether a fragment is sent after each step."""
        return self._every == self._fragments

    def sent(self, step: Steps) -> Bool[Array, ""]:
        """Whether a fragment is sent after `step` steps."""
        return jnp.asarray(is_sent(step, self._every, self._fragments))

    def taken(self, weights: Weights, step: Steps) -> list[Rows]:
        """The rows of each weight (on the device) in the fragment of `step`, and zeros in place of those that a device
        lacks."""
        leaves = jax.tree.leaves(weights)
        if self._fragments == 1:
            return leaves
        return [_rows_of(*each) for each in zip(leaves, self._rows(leaves, step), strict=True)]

    def map_rows(
        self, function: Callable[..., Rows], weights: Weights, along: Sequence[Rows], step: Steps
    ) -> list[Rows]:
        """`function` of the rows of each weight in the fragment of `step`, and of those rows `along` them; of weights
        in host memory, a few rows at a time."""
        leaves = jax.tree.leaves(weights)
        each = zip(leaves, along, self._rows(leaves, step), self._stacked, strict=True)
        return [self._map_leaf_rows(function, *one) for one in each]

    def _map_leaf_rows(
        self, function: Callable[..., Rows], leaf: Rows, along: Rows, rows: Indices, stack: bool
    ) -> Rows:
        if not is_on_host(leaf):
            return function(leaf if self._fragments == 1 else _rows_of(leaf, rows), along)
        if self._fragments == 1:
            return map_row_pieces(function, leaf, rows_of_piece(leaf), along=(along,))
        if stack:
            return map_taken_rows(function, leaf, rows, along)
        return function(_rows_of(jax.device_put(leaf, DEVICE), rows), along)

    def zeros(self, weights: Weights, step: Steps) -> list[Rows]:
        """Zeros like the rows of each weight in the fragment of `step`, on the device."""
        leaves = jax.tree.leaves(weights)

        def zeros(leaf: Rows, rows: Indices) -> Rows:
            length = leaf.shape[0] if self._fragments == 1 else rows.shape[0]
            varying = tuple(jax.typeof(leaf).manual_axis_type.varying)  # with islands, where they differ
            return lax.pcast(jnp.zeros((length, *leaf.shape[1:]), leaf.dtype), varying, to="varying")

        return [zeros(*each) for each in zip(leaves, self._rows(leaves, step), strict=True)]

    def put(self, weights: Weights, new: Sequence[Rows], step: Steps) -> Weights:
        """`weights` (on the device) with other rows in the fragment of `step`."""
        leaves, structure = jax.tree.flatten(weights)
        if self._fragments == 1:
            return structure.unflatten(new)
        each = zip(leaves, self._rows(leaves, step), new, strict=True)
        return structure.unflatten([_with_rows(*one) for one in each])

    def changed(
        self, trees: Sequence[Weights], function: Callable[..., tuple[Rows, ...]], along: Sequence[Rows], step: Steps
    ) -> list[Weights]:
        """Trees of weights with `function` of their rows in the fragment of `step`, and of those rows `along` them, in
        place of these rows; in the same memory."""
        structure = jax.tree.structure(trees[0])
        leaves = list(zip(*map(jax.tree.leaves, trees), strict=True))
        rows = self._rows(jax.tree.leaves(trees[0]), step)
        each = zip(leaves, along, rows, self._stacked, strict=True)
        new = [self._changed(function, *one) for one in each]
        return [structure.unflatten(leaves) for leaves in zip(*new, strict=True)]

    def _changed(
        self, function: Callable[..., tuple[Rows, ...]], old: tuple[Rows, ...], along: Rows, rows: Indices, stack: bool
    ) -> tuple[Rows, ...]:
        every = lambda piece, along: function(*piece, along)
        if self._fragments == 1:
            return streamed(every, old, along, rows_of_piece(old)) if is_on_host(old[0]) else every(old, along)
        if is_on_host(old[0]) and stack:
            return replaced_rows(every, old, along, rows)

        def some(here: tuple[Rows, ...], along: Rows) -> tuple[Rows, ...]:
            new = function(*(_rows_of(leaf, rows) for leaf in here), along)
            return tuple(_with_rows(leaf, rows, part) for leaf, part in zip(here, new, strict=True))

        return streamed(some, old, along, None) if is_on_host(old[0]) else some(old, along)

    def _rows(self, leaves: list[Rows], step: Steps) -> list[Indices]:
        """Indices of this device's rows of each weight in the fragment of `step`; beyond the last one for none."""
        fragment = jnp.asarray(fragment_sent(step, self._every, self._fragments))

        def rows(leaf: Rows, where: PartitionSpec, table: np.ndarray | None) -> Indices:
            if table is not None:
                return jnp.asarray(table)[lax.axis_index("pipe"), fragment]
            first = lax.axis_index(axes_of_dim(where, 0)) * leaf.shape[0] if axes_of_dim(where, 0) else 0
            most = -(-leaf.shape[0] // self._fragments)
            return (fragment - first) % self._fragments + self._fragments * jnp.arange(most)

        return [rows(*each) for each in zip(leaves, *self._tables, strict=True)]

    @property
    def _stacked(self) -> list[bool]:
        """Whether the rows of a weight are layers."""
        return [table is not None for table in self._tables[1]]

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


def apart[**P](function: Callable[P, Any]) -> Callable[P, Any]:
    """`function`, which XLA does not fuse with what is around it: its bits do not depend on where its arrays are."""

    def alone(*arguments: P.args, **named: P.kwargs) -> Any:
        return lax.optimization_barrier(function(*lax.optimization_barrier(arguments), **named))

    return alone


def _rows_of(leaf: Rows, rows: Indices) -> Rows:
    """Rows of `leaf`, zeros for indices beyond the last one."""
    return jnp.take(leaf, rows, axis=0, mode="fill", fill_value=0)


def _with_rows(leaf: Rows, rows: Indices, new: Rows) -> Rows:
    """`leaf` with other rows, but for indices beyond the last one."""
    return leaf.at[rows].set(new, mode="drop")
