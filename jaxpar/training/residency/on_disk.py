"""State on disk (ZeRO-Infinity): the update runs on one piece of a weight at a time.

The compiled step makes the gradients, from a copy of the weights in storage dtype that stays on the device. Then one
piece after the other is read ahead by a thread, updated on the device, and written back by another thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Wrapped
from jaxtyping import Array, Float, Int, PyTree, UInt

from jaxpar.interop.mapping.form import ReadPart
from jaxpar.layout.state import TrainState, WeightState, weight_states
from jaxpar.layout.step_arguments import StepArguments
from jaxpar.layout.step_layout import shardings
from jaxpar.layout.step_options import step_options
from jaxpar.memory.disk_array import DiskArray, check_complete, copied, offload_folder, remove_stale
from jaxpar.memory.streaming import rows_of_piece
from jaxpar.mesh.build import mapped
from jaxpar.mesh.parameters import ModelTree, Nested, Weights, subtree_like
from jaxpar.model.decoder import Batch
from jaxpar.optim.optimizer import AVERAGE
from jaxpar.training.residency.initial import InitialWeight, weight_by_weight
from jaxpar.training.residency.on_device import OnDevice
from jaxpar.training.residency.weight_update import CompiledStep, Measure, UpdateFacts, WeightUpdate

FULL: PyTree = PartitionSpec()
FACTS = UpdateFacts(FULL, FULL, FULL, FULL)

READS, WRITES = 1, 2
"""Pieces that may be read ahead, and be in write-back, at the same time."""


class Piece(NamedTuple):
    """Rows of a weight and of its moments."""

    weight: int
    """Index of the weight among the leaves."""
    first: int
    rows: int | None
    """None for all of each array, whatever its number of rows."""
    last: bool
    """Whether it is the last one of the weight."""


class OnDisk(OnDevice):
    """Master weights and moments in files; on the device a copy of the weights in storage dtype."""

    asynchronous = False

    @property
    def folder(self) -> Path:
        return offload_folder(self.layout.config)

    # ---- state

    @cached_property
    def _initial(self) -> Callable[[StepArguments], TrainState]:
        return partial(weight_by_weight, self.layout, self.mesh, self.updates, self._stored)

    def _stored(self, weight: InitialWeight, seed: UInt[Array, ""]) -> WeightState:
        arrays = jax.tree.map(lambda like: DiskArray(self.folder, like), weight.like)
        for first, piece in weight.pieces(seed):
            _write(arrays, first, piece)
        return arrays

    def initial_state(self) -> TrainState:
        return self.adopted(super().initial_state())

    def adopted(self, state: TrainState) -> TrainState:
        """`state` with master weights and moments in files, new ones for those that are in memory."""
        remove_stale(self.folder)

        def to_file(like: jax.ShapeDtypeStruct, leaf: jax.Array | DiskArray) -> DiskArray:
            if isinstance(leaf, DiskArray):
                return leaf
            array = DiskArray(self.folder, like)
            array.write(0, leaf)
            return array

        like = self.layout.abstract_state(self.mesh)
        master, optimizer = jax.tree.map(to_file, (like.master, like.optimizer), (state.master, state.optimizer))
        for weight, dtype in zip(jax.tree.leaves(master), jax.tree.leaves(self._dtypes), strict=True):
            weight.on_device = self.fetched(weight, dtype)
        return state._replace(master=master, optimizer=optimizer)

    def arrays(self, state: TrainState) -> dict[str, PyTree]:
        return {"weights, of files": [leaf.on_device for leaf in jax.tree.leaves(state.master)]}

    def readable(self, weights: Weights) -> Weights:
        """Weights that are on the device, or fetched temporarily."""
        here = lambda leaf, dtype: self.fetched(leaf, dtype) if leaf.on_device is None else leaf.on_device
        return jax.tree.map(here, weights, self._dtypes)

    def with_weights(self, state: TrainState, weights: ModelTree[ReadPart]) -> TrainState:
        def replace(array: DiskArray, read: ReadPart, dtype: jnp.dtype) -> None:
            for (rows, *others), part in array.parts():
                for row in range(len(part)):
                    part[row] = read((slice(rows.start + row, rows.start + row + 1), *others))[0]
            array.on_device = self.fetched(array, dtype)

        jax.tree.map(replace, state.master, weights, self._dtypes)
        if AVERAGE not in state.optimizer:
            return state
        return state._replace(optimizer={**state.optimizer, AVERAGE: jax.tree.map(copied, state.master)})

    @cached_property
    def _dtypes(self) -> Nested[jnp.dtype]:
        """The dtypes of the copies on the device."""
        return subtree_like(self.layout.placements.storage_dtypes, self.layout.master)

    def fetched(self, weight: DiskArray, dtype: jnp.dtype) -> jax.Array:
        """All of an on-disk weight on the device, in storage dtype; its pieces pass through the host one by one."""
        layout = weight.sharding.spec

        def put(
            full: Float[Array, "*shard"], rows: Float[Array, "*rows"], first: Int[Array, ""]
        ) -> Float[Array, "*shard"]:
            return lax.dynamic_update_slice_in_dim(full, rows.astype(full.dtype), first, 0)

        program = jax.jit(self._mapped(put, (layout, layout, FULL), layout), donate_argnums=0)
        full = jnp.zeros(weight.shape, dtype, device=weight.sharding)
        rows = rows_of_piece(jax.ShapeDtypeStruct(weight.local_shape, weight.dtype))
        for first in range(0, weight.local_shape[0], rows):
            full = program(full, weight.placed(weight.read(first, rows)), jnp.int32(first))
        return full

    # ---- a step

    def train(self, measure: Measure, metrics: PyTree[PartitionSpec]) -> Wrapped:
        """The jitted step without its update: gradients, the facts that the update needs, and the next state."""
        layout = self.layout
        reads = layout.state._replace(optimizer=None)
        results = layout.master, FACTS, reads._replace(master=None), metrics

        def _train(state: TrainState, batch: Batch, arguments: StepArguments) -> tuple[PyTree, ...]:
            return tuple(measure(state, batch, arguments))

        step = self._mapped(_train, (reads, layout.batch.partitions, FULL), results)
        options = step_options(layout.plan, self.mesh)
        return jax.jit(step, out_shardings=shardings(self.mesh, results), compiler_options=options)

    def advance(
        self, train: CompiledStep, state: TrainState, batch: Batch, arguments: StepArguments
    ) -> tuple[TrainState, PyTree]:
        """Raises `UserError` where an earlier update of `state` was interrupted."""
        check_complete(state)
        weights = jax.tree.map(lambda leaf: leaf.on_device, state.master)
        gradients, facts, following, metrics = train(state._replace(master=weights, optimizer=None), batch, arguments)
        leaves = jax.tree.leaves(gradients)
        del gradients  # so that each can be dropped
        self.apply(state, leaves, facts)
        return following._replace(master=state.master, optimizer=state.optimizer), metrics

    def abstract_input(self) -> TrainState:
        state = self.layout.abstract_state(self.mesh)
        on_device = lambda leaf, dtype: jax.ShapeDtypeStruct(
            leaf.shape, dtype, sharding=NamedSharding(leaf.sharding.mesh, leaf.sharding.spec)
        )
        return state._replace(master=jax.tree.map(on_device, state.master, self._dtypes), optimizer=None)

    def apply(self, state: TrainState, gradients: list[jax.Array | None], facts: UpdateFacts) -> None:
        """Update the files of `state`, and its weights on the device. Returns when all is written.

        If it is interrupted, the state that is left is refused by every step and save.

        Args:
            state: of disk arrays.
            gradients: the leaves, which are dropped from the list one by one once used.
            facts: of the step; nothing is touched where it does not apply.
        """
        if not bool(facts.applies):
            return
        weights: list[PyTree] = weight_states(state.master, state.optimizer)  # of disk arrays
        arrays: list[DiskArray] = jax.tree.leaves(weights)
        pieces = list(self._pieces(weights))

        def updated(piece: Piece, parts: WeightState) -> WeightState:
            weight = weights[piece.weight]
            now, stored = jax.tree.map(DiskArray.placed, weight, parts), weight.master.on_device
            new, weight.master.on_device = self._updates[piece.weight](
                now, gradients[piece.weight], stored, facts, jnp.int32(piece.first)
            )
            if piece.last:
                gradients[piece.weight] = None
            return new

        read = lambda piece: _read(weights[piece.weight], piece)
        write = lambda done: _write(weights[done[0].weight], done[0].first, done[1])
        for array in arrays:
            array.halfway = True
        with ThreadPoolExecutor(1, "read-state") as reader, ThreadPoolExecutor(1, "write-state") as writer:
            each = zip(pieces, _ahead(reader, read, pieces, READS), strict=True)
            new = ((piece, updated(piece, parts)) for piece, parts in each)
            deque(_ahead(writer, write, new, WRITES), maxlen=0)  # runs them all
        for array in arrays:
            array.halfway = False

    def _mapped(
        self, function: Callable[..., PyTree], in_layouts: PyTree, out_layouts: PyTree
    ) -> Callable[..., PyTree]:
        return mapped(function, self.mesh, self.layout.plan.dtypes.compute, in_layouts, out_layouts)

    def _pieces(self, weights: list[PyTree]) -> Iterator[Piece]:
        for index, (weight, update) in enumerate(zip(weights, self.updates, strict=True)):
            shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.local_shape, leaf.dtype), weight)
            total, rows = weight.master.local_shape[0], update.rows(shapes)
            for first in range(0, total, rows or total):
                yield Piece(index, first, rows, first + (rows or total) >= total)

    @cached_property
    def _updates(self) -> list[Callable[..., tuple[WeightState, jax.Array]]]:
        """Compiled function of each weight: (piece, full gradient, weight on the device, facts, first row) -> (new
        piece, weight)."""
        layouts = weight_states(self.layout.state.master, self.layout.state.optimizer)
        return list(map(self._compiled, self.updates, layouts))

    def _compiled(self, update: WeightUpdate, layout: WeightState) -> Callable[..., tuple[WeightState, jax.Array]]:
        def function(
            now: WeightState,
            gradient: Float[Array, "*shard"],
            stored: Float[Array, "*shard"],
            facts: UpdateFacts,
            first: Int[Array, ""],
        ) -> tuple[WeightState, Float[Array, "*shard"]]:
            new = update(now, lax.dynamic_slice_in_dim(gradient, first, now.master.shape[0]), facts)
            return new, lax.dynamic_update_slice_in_dim(stored, new.master.astype(stored.dtype), first, 0)

        step = self._mapped(function, (layout, layout.master, layout.master, FACTS, FULL), (layout, layout.master))
        return jax.jit(step, donate_argnums=(0, 2), out_shardings=shardings(self.mesh, (layout, layout.master)))


def _ahead[Item, Result](
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], count: int
) -> Iterator[Result]:
    """The results of `function`, in order, while a thread computes those of the next `count` items."""
    coming: deque[Future[Result]] = deque()
    for item in items:
        coming.append(pool.submit(function, item))
        if len(coming) > count:
            yield coming.popleft().result()
    yield from (future.result() for future in coming)


def _read(weight: WeightState, piece: Piece) -> WeightState:
    return jax.tree.map(lambda leaf: leaf.read(piece.first, piece.rows), weight)


def _write(weight: WeightState, first: int, new: WeightState) -> None:
    jax.tree.map(lambda leaf, rows: leaf.write(first, rows), weight, new)
