"""State on disk (ZeRO-Infinity): the update runs on one piece of a weight at a time.

The compiled step makes the gradients, from a copy of the weights in storage dtype that stays on the device. Then one
piece after the other is read ahead by a thread, updated on the device, and written back by another thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from jaxpar.interop.sources.source import ReadPart
from jaxpar.layout.state import TrainState, WeightState, weight_states
from jaxpar.layout.step_arguments import StepArguments
from jaxpar.layout.step_layout import StepLayout, shardings
from jaxpar.layout.step_options import step_options
from jaxpar.memory.disk_array import DiskArray, check_whole, copied, offload_folder, remove_stale
from jaxpar.memory.streaming import rows_of_piece
from jaxpar.mesh.mapped import mapped
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch
from jaxpar.optim.optimizer import AVERAGE
from jaxpar.training.residency.initial import makers
from jaxpar.training.residency.on_device import OnDevice
from jaxpar.training.residency.saved_state import SavedState
from jaxpar.training.residency.weight_update import Measure, UpdateFacts

WHOLE: Any = PartitionSpec()

WRITES = 2
"""Pieces that may be in write-back at the same time."""


class Piece(NamedTuple):
    """Rows of a weight and of its moments."""

    weight: int
    """Number of the weight among the leaves."""
    first: int
    rows: int | None
    """None for all of each array, however many rows it has."""


class OnDisk(OnDevice):
    """Master weights and moments in files; on the device a copy of the weights in storage dtype."""

    asynchronous = False

    def __init__(self, layout: StepLayout, mesh: Mesh):
        super().__init__(layout, mesh)
        self._compiled: dict[tuple[int, int | None], Any] = {}

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return offload_folder(self.layout.config)

    # ---- state

    def compile_initial(self) -> None:
        """Nothing: each weight has a program of its own."""

    def initial_state(self) -> TrainState:
        return self.adopted(makers(self.layout, self.mesh, self.updates, self.layout.arguments))

    def adopted(self, state: TrainState) -> TrainState:
        """`state` with master weights and moments in new files; an array may be given as a function that makes it."""
        remove_stale(self.folder)
        like = self.layout.abstract_state(self.mesh)
        on_disk = jax.tree.map(self._to_file, (like.master, like.optimizer), (state.master, state.optimizer))
        for weight in jax.tree.leaves(on_disk[0]):
            weight.on_device = self.fetched(weight)
        return state._replace(master=on_disk[0], optimizer=on_disk[1])

    def saved(self) -> SavedState:
        return SavedState(self.layout.abstract_state(self.mesh), self.layout.order, self.folder)

    def arrays(self, state: TrainState) -> dict[str, Any]:
        weights = [leaf.on_device for leaf in jax.tree.leaves(state.master)]
        return {"weights, of files": weights}

    def readable(self, weights: Weights) -> Weights:
        """What is on the device, or fetched temporarily."""
        return jax.tree.map(lambda own: self.fetched(own) if own.on_device is None else own.on_device, weights)

    def with_weights(self, state: TrainState, weights: Any) -> TrainState:
        def replace(array: DiskArray, read: ReadPart) -> None:
            for region, part in array.parts():
                first, *others = region
                for row in range(len(part)):
                    part[row] = read((slice(first.start + row, first.start + row + 1), *others))[0]
            array.on_device = self.fetched(array)

        jax.tree.map(replace, state.master, weights)
        if AVERAGE not in state.optimizer:
            return state
        return state._replace(optimizer={**state.optimizer, AVERAGE: jax.tree.map(copied, state.master)})

    def _to_file(self, like: jax.ShapeDtypeStruct, leaf: Any) -> DiskArray:
        if isinstance(leaf, DiskArray):
            return leaf
        array = DiskArray(self.folder, like)
        array.write(0, leaf if isinstance(leaf, jax.Array) else leaf())
        return array

    def fetched(self, weight: DiskArray) -> jax.Array:
        """All of an on-disk weight on the device, in storage dtype; its pieces pass through the host one by one."""
        total, dtype = weight.local_shape[0], self.layout.placements.storage.dtype
        rows = rows_of_piece(jax.ShapeDtypeStruct(weight.local_shape, weight.dtype))
        put = self._put(weight)
        whole = jax.jit(lambda: jnp.zeros(weight.shape, dtype), out_shardings=weight.sharding)()
        for first in range(0, total, rows):
            whole = put(whole, weight.placed(weight.read(first, min(rows, total - first))), jnp.int32(first))
        return whole

    def _put(self, weight: DiskArray) -> Any:
        """Compiled (weights on the device, rows of an on-disk one, first of them) -> weights with these rows."""
        layout = weight.sharding.spec

        def function(
            whole: Float[Array, "*shard"], rows: Float[Array, "*rows"], first: Int[Array, ""]
        ) -> Float[Array, "*shard"]:
            return lax.dynamic_update_slice_in_dim(whole, rows.astype(whole.dtype), first, 0)

        put = self._mapped(function, (layout, layout, PartitionSpec()), layout)
        return jax.jit(put, donate_argnums=0, out_shardings=weight.sharding)

    # ---- a step

    def train(self, measure: Measure, metrics: Any) -> Any:
        """The jitted step without its update: gradients, the facts that the update needs, and the next state."""
        layout, whole = self.layout, WHOLE
        facts = UpdateFacts(whole, whole, whole, whole)
        reads = layout.state._replace(optimizer=None)
        results = layout.master, facts, reads._replace(master=None), metrics

        def _train(state: TrainState, batch: Batch, arguments: StepArguments) -> Any:
            return tuple(measure(state, batch, arguments))

        step = self._mapped(_train, (reads, layout.batch.partitions, whole), results)
        options = step_options(layout.plan, self.mesh)
        return jax.jit(wraps(_train)(step), out_shardings=shardings(self.mesh, results), compiler_options=options)

    def advance(self, train: Any, state: TrainState, batch: Batch, arguments: StepArguments) -> tuple[TrainState, Any]:
        gradients, facts, following, metrics = train(self.lean(state), batch, arguments)
        leaves = jax.tree.leaves(gradients)
        del gradients  # so that each can be dropped
        self.apply(state, leaves, facts)
        return following._replace(master=state.master, optimizer=state.optimizer), metrics

    def lean(self, state: TrainState) -> TrainState:
        """What the compiled step reads of `state`: weights in storage dtype, and no moments.

        Raises `UserError` where an update of it was interrupted.
        """
        check_whole(state)
        weights = jax.tree.map(lambda leaf: leaf.on_device, state.master)
        return state._replace(master=weights, optimizer=None)

    def abstract_input(self) -> TrainState:
        state, dtype = self.layout.abstract_state(self.mesh), self.layout.placements.storage.dtype

        def one(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            assert isinstance(leaf.sharding, NamedSharding), "a state is on the mesh"
            on_device = NamedSharding(leaf.sharding.mesh, leaf.sharding.spec)
            return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=on_device)

        return state._replace(master=jax.tree.map(one, state.master), optimizer=None)

    def apply(self, state: TrainState, gradients: list[Any], facts: UpdateFacts) -> None:
        """Update the files of `state`, and its weights on the device. Returns when all is written.

        If it is interrupted, the state that is left is refused by every step and save.

        Args:
            state: of disk arrays.
            gradients: the leaves, which are dropped from the list one by one once used.
            facts: of the step; nothing is touched where it does not apply.
        """
        if not bool(facts.applies):
            return
        weights: list[Any] = weight_states(state.master, state.optimizer)  # of disk arrays
        arrays = [leaf for leaf in jax.tree.leaves(weights) if isinstance(leaf, DiskArray)]
        for array in arrays:
            array.halfway = True
        pieces = list(self._pieces(weights))
        with ThreadPoolExecutor(1, "read-state") as reader, ThreadPoolExecutor(1, "write-state") as writer:
            coming: deque[Future[Any]] = deque()
            going: deque[Future[None]] = deque()
            for place, piece in enumerate(pieces):
                for ahead in pieces[place + len(coming) : place + 2]:
                    coming.append(reader.submit(_read, weights[ahead.weight], ahead))
                weight = weights[piece.weight]
                now = jax.tree.map(DiskArray.placed, weight, coming.popleft().result(), is_leaf=_is_parts)
                update = self._update(weight, piece)
                new, weight.master.on_device = update(
                    now, gradients[piece.weight], weight.master.on_device, facts, jnp.int32(piece.first)
                )
                if place + 1 == len(pieces) or pieces[place + 1].weight != piece.weight:
                    gradients[piece.weight] = None
                going.append(writer.submit(_write, weight, piece, new))
                while len(going) > WRITES:
                    going.popleft().result()
            for write in going:
                write.result()
        for array in arrays:
            array.halfway = False

    def _mapped(self, function: Any, in_layouts: Any, out_layouts: Any) -> Any:
        return mapped(function, self.mesh, self.layout.plan.dtypes.compute, in_layouts, out_layouts)

    def _pieces(self, weights: list[Any]) -> Iterator[Piece]:
        for number, (weight, update) in enumerate(zip(weights, self.updates, strict=True)):
            shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.local_shape, leaf.dtype), weight)
            total, rows = weight.master.local_shape[0], update.rows(shapes)
            if rows is None:
                yield Piece(number, 0, None)
                continue
            for first in range(0, total, rows):
                yield Piece(number, first, min(rows, total - first))

    def _update(self, weight: WeightState, piece: Piece) -> Any:
        """Compiled (piece, whole gradient, weights on the device, facts, first row) -> (new piece, weights)."""
        key = piece.weight, piece.rows
        if key not in self._compiled:
            self._compiled[key] = self._compile(weight, piece)
        return self._compiled[key]

    def _compile(self, weight: WeightState, piece: Piece) -> Any:
        update, rows = self.updates[piece.weight], piece.rows
        layout = jax.tree.map(lambda leaf: leaf.sharding.spec, weight)

        def function(
            now: WeightState,
            gradient: Float[Array, "*shard"],
            stored: Float[Array, "*shard"],
            facts: UpdateFacts,
            first: Int[Array, ""],
        ) -> tuple[WeightState, Float[Array, "*shard"]]:
            part = gradient if rows is None else lax.dynamic_slice_in_dim(gradient, first, rows)
            new = update(now, part, facts)
            return new, lax.dynamic_update_slice_in_dim(stored, new.master.astype(stored.dtype), first, 0)

        master = layout.master
        layouts = layout, master, master, UpdateFacts(WHOLE, WHOLE, WHOLE, WHOLE), WHOLE
        step = self._mapped(function, layouts, (layout, master))
        return jax.jit(step, donate_argnums=(0, 2), out_shardings=shardings(self.mesh, (layout, master)))


def _is_parts(leaf: Any) -> bool:
    return isinstance(leaf, list)


def _read(weight: WeightState, piece: Piece) -> Any:
    return jax.tree.map(lambda leaf: leaf.read(piece.first, piece.rows), weight)


def _write(weight: WeightState, piece: Piece, new: WeightState) -> None:
    jax.tree.map(lambda leaf, rows: leaf.write(piece.first, rows), weight, new)
