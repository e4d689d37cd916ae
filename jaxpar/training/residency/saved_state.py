"""The state in the form of a checkpoint: layers in model order, whatever the pipeline.

In memory the rows of stacked layers lie as the pipeline's chunks need them (`jaxpar.mesh.layer_order`), with padding
where stages are uneven. A checkpoint has one row per layer, in order, so that any other layout can read it. Where these
differ, a save moves each stack from a split of its rows over the pipe axis to a split of another dim (an all-to-all),
puts the rows in order there, and moves them on to pinned host memory before the next stack: the device has room for two
copies of one stack where a step has its gradients. Restoring deletes each stack that it has moved. Rows that are on
disk are saved and restored one by one, each in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import KeyPath
from jaxtyping import PyTree

from jaxpar.checkpoint.pieces import Pieces, Region
from jaxpar.hardware.host import PINNED
from jaxpar.memory import streaming
from jaxpar.memory.disk_array import DiskArray, check_complete
from jaxpar.mesh.layer_order import LAYERS, PADDING, LayerOrder, StackOrder
from jaxpar.mesh.rules import axes_of_dim

type State = PyTree


class SavedState:
    """Converts between the state of a step and the state of a checkpoint.

    Args:
        abstract: shapes, dtypes and shardings of the state in memory.
        order: where the layers are in the stacks.
        folder: for the files of the arrays that are stored on disk; None where there are none.
    """

    def __init__(self, abstract: State, order: LayerOrder, folder: Path | None = None):
        self._abstract, self._order, self._folder = abstract, order, folder

    @cached_property
    def abstract(self) -> State:
        """Shapes, dtypes and shardings of the state in a checkpoint; placeholders for what is on disk."""

        def saved(path: KeyPath, like: PyTree) -> jax.ShapeDtypeStruct | DiskRows:
            if (folder := self._folder) and like.sharding.memory_kind == PINNED:
                return self._rows(path, like, partial(DiskArray, folder, like))
            if self._moves(path) is None:
                return like
            shape = self._shape(path, like)
            return jax.ShapeDtypeStruct(shape, like.dtype, sharding=_fitting(like.sharding, shape))

        return jax.tree_util.tree_map_with_path(saved, self._abstract)

    def outgoing(self, state: State) -> State:
        """`state` with its layers in order, to be saved. Those that had to be moved are in pinned host memory; what is
        on disk stays there until it is written.

        Raises `UserError` where an update of what is on disk was interrupted.
        """
        check_complete(state)

        def one(path: KeyPath, leaf: jax.Array | DiskArray) -> jax.Array | DiskRows:
            if isinstance(leaf, DiskArray):
                return self._rows(path, leaf, lambda: leaf)
            if (order := self._moves(path)) is None:
                return leaf
            where = _device_sharding(_fitting(leaf.sharding, self._shape(path, leaf)))
            return _moved(leaf, order.row_of_layer, where, where.with_memory_kind(PINNED))

        return jax.tree_util.tree_map_with_path(one, state)

    def incoming(self, saved: State) -> State:
        """A restored state in the form that the step takes; rows that only pad the stacks are zero. Uses `saved` up."""

        def one(path: KeyPath, leaf: jax.Array | DiskArray, like: PyTree) -> jax.Array | DiskArray:
            if isinstance(leaf, DiskArray) or (order := self._moves(path)) is None:
                return leaf
            moved = _moved(leaf, order.places, _device_sharding(leaf.sharding), like.sharding)
            leaf.delete()
            return moved

        return jax.tree_util.tree_map_with_path(one, saved, self._abstract)

    def _moves(self, path: KeyPath) -> StackOrder | None:
        """The order of the stack of layers at `path` of the state; None where a checkpoint has the same rows."""
        stacked = not self._order.is_ordered and any(getattr(key, "key", None) == LAYERS for key in path)
        return self._order.stack_at(path) if stacked else None

    def _shape(self, path: KeyPath, like: PyTree) -> tuple[int, ...]:
        """The shape in a checkpoint of an array like `like`."""
        order = self._moves(path)
        return like.shape if order is None else (len(order.layers), *like.shape[1:])

    def _rows(self, path: KeyPath, like: PyTree, file: Callable[[], DiskArray]) -> DiskRows:
        """The part in a checkpoint of a disk array like `like`, at `path` of the state."""
        order = self._moves(path)
        numbers = None if order is None else tuple(order.places.tolist())
        local = like.sharding.shard_shape(like.shape)
        return DiskRows(self._shape(path, like), np.dtype(like.dtype), local, file, numbers)


def _fitting(sharding: Any, shape: tuple[int, ...]) -> NamedSharding:
    """`sharding`, with the pipe axis on the first dim of `shape`, other than the rows, that divides by it as well."""
    sizes = sharding.mesh.shape
    dims = [tuple(axis for axis in axes_of_dim(sharding.spec, dim) if axis != "pipe") for dim in range(len(shape))]
    for dim, axes in list(enumerate(dims))[1:]:
        if shape[dim] % (sizes["pipe"] * prod(sizes[axis] for axis in axes)) == 0:
            dims[dim] = (*axes, "pipe")
            break
    spec = PartitionSpec(*[axes or None for axes in dims])
    return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


def _moved(stack: jax.Array, rows: np.ndarray, where: NamedSharding, to: NamedSharding) -> jax.Array:
    """`rows` of a stack, zeros for `PADDING`, as `to`; taken in device memory, where the stack is split as `where`.

    It waits until they are there, so that no two stacks are moved at a time.
    """
    here = jax.device_put(stack, _device_sharding(stack.sharding))
    taken = _taken(here, tuple(rows.tolist()), where, _device_sharding(to))
    return jax.device_put(taken, to).block_until_ready()


@partial(jax.jit, static_argnums=(1, 2, 3))
def _taken(stack: jax.Array, rows: tuple[int, ...], where: NamedSharding, to: NamedSharding) -> jax.Array:
    split = lambda a, sharding: jax.lax.with_sharding_constraint(a, sharding)
    taken = jnp.take(split(stack, where), np.maximum(rows, 0), axis=0)
    layers = (np.array(rows) != PADDING).reshape(-1, *[1] * (stack.ndim - 1))
    return split(split(jnp.where(layers, taken, jnp.zeros_like(taken)), where), to)


def _device_sharding(sharding: Any) -> NamedSharding:
    """The parts of a `NamedSharding`, in device memory."""
    return NamedSharding(sharding.mesh, sharding.spec)


@dataclass(frozen=True)
class DiskRows(Pieces):
    """A disk array, or a placeholder for one.

    Args:
        local_shape: of the part of one device.
        file: returns the array; a new one when restoring.
        numbers: which row of the checkpoint each row of the array is, `PADDING` for none; None where they are the same.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    local_shape: tuple[int, ...]
    file: Callable[[], DiskArray]
    numbers: tuple[int, ...] | None = None

    @property
    def piece_shape(self) -> tuple[int, ...]:
        """Rows per piece: divides the rows of a part, so that no piece spans two; 1 where rows are not in order."""
        rows, *others = self.local_shape
        most = max(1, streaming.PIECE_BYTES // max(1, self.dtype.itemsize * prod(others)))
        return (1 if self.numbers else max(n for n in range(1, min(rows, most) + 1) if rows % n == 0), *others)

    def pieces(self) -> Iterator[tuple[Region, np.ndarray]]:
        """The parts that this process has to save."""
        rows = self.piece_shape[0]
        for region, part in self.file().local_parts():
            for first, saved_row, count in self._runs(region, rows):
                yield (slice(saved_row, saved_row + count), *region[1:]), part[first : first + count]

    def restored(self, read: Callable[[Region], np.ndarray], rows: int) -> DiskArray:
        """New files with what `read` returns; rows that are in no checkpoint are zeros."""
        array = self.file()
        for region, part in array.parts():
            for first, saved_row, count in self._runs(region, rows):
                part[first : first + count] = read((slice(saved_row, saved_row + count), *region[1:]))
        return array

    def _runs(self, region: Region, most: int) -> Iterator[tuple[int, int, int]]:
        """(row of the part, row of the checkpoint, rows) that follow one another in both, up to multiples of `most`."""
        whole = range(self.shape[0]) if self.numbers is None else self.numbers
        numbers = whole[region[0]]
        first = 0
        while first < len(numbers):
            saved_row, count = numbers[first], 1
            if saved_row == PADDING:
                first += 1
                continue
            while (
                (saved_row + count) % most
                and first + count < len(numbers)
                and numbers[first + count] == saved_row + count
            ):
                count += 1
            yield first, saved_row, count
            first += count
