"""Steps whose master weights and moments rest in files (ZeRO-Infinity): the update, a piece of a weight at a time.

The compiled step makes the gradients, from a copy of the weights in storage dtype that stays on the device. Then one
piece after the other is read ahead by a thread, updated on the device, and written back by another thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from jaxpar.memory.filed import FiledArray, check_whole
from jaxpar.memory.streaming import rows_of_piece
from jaxpar.training.state import TrainState
from jaxpar.training.weight_update import UpdateFacts, WeightState, weight_states

if TYPE_CHECKING:
    from jaxpar.training.step import TrainStep

WRITES = 2
"""Pieces on their way back at the same time."""


class Piece(NamedTuple):
    """Rows of a weight and of its moments."""

    weight: int
    """Number of the weight among the leaves."""
    first: int
    rows: int | None
    """None for all of each array, however many rows it has."""


class FiledUpdate:
    """The update of a step's weights in files."""

    def __init__(self, step: TrainStep):
        self._step = step
        self._compiled: dict[tuple[int, int | None], Any] = {}

    @property
    def folder(self) -> Path:
        """Where the files are."""
        run, chosen = self._step.config.run, self._step.config.memory.offload_dir
        return Path(chosen).expanduser() if chosen is not None else Path(run.dir).expanduser() / run.name

    def rest(self, state: TrainState) -> TrainState:
        """`state` with its master weights and moments in new files; in place of an array may be what makes it."""
        like = self._step.abstract_state()
        wanted = like.master, like.optimizer
        filed = jax.tree.map(self._rest_one, wanted, (state.master, state.optimizer))
        for weight in jax.tree.leaves(filed[0]):
            weight.on_device = self.fetched(weight)
        return state._replace(master=filed[0], optimizer=filed[1])

    def _rest_one(self, like: jax.ShapeDtypeStruct, leaf: Any) -> FiledArray:
        if isinstance(leaf, FiledArray):
            return leaf
        filed = FiledArray(self.folder, like)
        filed.write(0, leaf if isinstance(leaf, jax.Array) else leaf())
        return filed

    def readable(self, weight: FiledArray) -> jax.Array:
        """A filed weight as the step reads it: what is on the device, or fetched for the while."""
        return self.fetched(weight) if weight.on_device is None else weight.on_device

    def fetched(self, weight: FiledArray) -> jax.Array:
        """All of a filed weight on the device, in storage dtype; its pieces go through the host one by one."""
        total, dtype = weight.local_shape[0], self._step.placements.storage.dtype
        rows = rows_of_piece(jax.ShapeDtypeStruct(weight.local_shape, weight.dtype))
        put = self._put(weight)
        whole = jax.jit(lambda: jnp.zeros(weight.shape, dtype), out_shardings=weight.sharding)()
        for first in range(0, total, rows):
            whole = put(whole, weight.placed(weight.read(first, min(rows, total - first))), jnp.int32(first))
        return whole

    def _put(self, weight: FiledArray) -> Any:
        """Compiled (weights on the device, rows of a filed one, first of them) -> weights with these rows."""
        layout = weight.sharding.spec

        def function(
            whole: Float[Array, "*shard"], rows: Float[Array, "*rows"], first: Int[Array, ""]
        ) -> Float[Array, "*shard"]:
            return lax.dynamic_update_slice_in_dim(whole, rows.astype(whole.dtype), first, 0)

        mapped = self._step.shard_map(function, (layout, layout, PartitionSpec()), layout)
        return jax.jit(mapped, donate_argnums=0, out_shardings=weight.sharding)

    def lean(self, state: TrainState) -> TrainState:
        """What the compiled step reads of `state`: weights in storage dtype, and no moments.

        Raises `UserError` where an update of it was interrupted.
        """
        check_whole(state)
        weights = jax.tree.map(lambda leaf: leaf.on_device, state.master)
        return state._replace(master=weights, optimizer=None)

    def abstract_lean(self) -> TrainState:
        """Shapes, dtypes and shardings of `lean`."""
        state, dtype = self._step.abstract_state(), self._step.placements.storage.dtype

        def one(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            assert isinstance(leaf.sharding, NamedSharding), "a state lies on the mesh"
            on_device = NamedSharding(leaf.sharding.mesh, leaf.sharding.spec)
            return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=on_device)

        return state._replace(master=jax.tree.map(one, state.master), optimizer=None)

    def apply(self, state: TrainState, gradients: list[Any], facts: UpdateFacts) -> None:
        """Update the files of `state`, and its weights on the device. Returns when all is written.

        Where that is interrupted, a state is left that no step and no save takes any more.

        Args:
            state: of filed arrays.
            gradients: the leaves, which are dropped from the list one by one as they were used.
            facts: of the step; nothing is touched where it is not finite.
        """
        if not bool(facts.finite):
            return
        weights: list[Any] = weight_states(state.master, state.optimizer)  # of filed arrays
        filed = [leaf for leaf in jax.tree.leaves(weights) if isinstance(leaf, FiledArray)]
        for array in filed:
            array.halfway = True
        pieces = list(self._pieces(weights))
        with ThreadPoolExecutor(1, "read-state") as reader, ThreadPoolExecutor(1, "write-state") as writer:
            coming: deque[Future[Any]] = deque()
            going: deque[Future[None]] = deque()
            for place, piece in enumerate(pieces):
                for ahead in pieces[place + len(coming) : place + 2]:
                    coming.append(reader.submit(_read, weights[ahead.weight], ahead))
                weight = weights[piece.weight]
                now = jax.tree.map(FiledArray.placed, weight, coming.popleft().result(), is_leaf=_is_parts)
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
        for array in filed:
            array.halfway = False

    def _pieces(self, weights: list[Any]) -> Iterator[Piece]:
        for number, (weight, update) in enumerate(zip(weights, self._step.weight_updates, strict=True)):
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
        update, rows = self._step.weight_updates[piece.weight], piece.rows
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

        whole: Any = PartitionSpec()
        master = layout.master
        layouts = layout, master, master, UpdateFacts(whole, whole, whole), whole
        mapped = self._step.shard_map(function, layouts, (layout, master))
        return jax.jit(mapped, donate_argnums=(0, 2), out_shardings=self._step.shardings((layout, master)))


def _is_parts(leaf: Any) -> bool:
    return isinstance(leaf, list)


def _read(weight: WeightState, piece: Piece) -> Any:
    return jax.tree.map(lambda leaf: leaf.read(piece.first, piece.rows), weight)


def _write(weight: WeightState, piece: Piece, new: WeightState) -> None:
    jax.tree.map(lambda leaf, rows: leaf.write(piece.first, rows), weight, new)
