"""The state in the form of a checkpoint: layers in model order, whatever the pipeline.

In memory the rows of stacked layers lie as the pipeline's chunks need them (`jaxpar.mesh.layer_order`), with padding
where stages are uneven. A checkpoint has one row per layer, in order, so that any other layout can read it. Where these
differ, a save moves each stack from a split of its rows over the pipe axis to a split of another dim (an all-to-all),
puts the rows in order there, and moves them on to pinned host memory before the next stack: the device has room for two
copies of one stack where a step has its gradients. Restoring deletes each stack that it has moved. Rows that are on
disk are saved and restored one by one, each in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxpar.hardware.host import PINNED
from jaxpar.memory.disk_array import DiskArray, check_whole
from jaxpar.mesh.layer_order import LAYERS, PADDING, LayerOrder, StackOrder
from jaxpar.mesh.rules import axes_of_dim
from jaxpar.training.residency.disk_rows import DiskRows

type State = Any


class SavedState:
    """Converts between the state of a step and the state of a checkpoint.

    Args:
        abstract: shapes, dtypes and shardings of the state in memory.
        order: where the layers are in the stacks.
        folder: for the files of the arrays that are stored on disk.
    """

    def __init__(self, abstract: State, order: LayerOrder, folder: Path | None = None):
        self._abstract, self._order, self._folder = abstract, order, folder
        self._compiled: dict[Any, Any] = {}
        """The moves of stacks, which all saves share."""

    @cached_property
    def abstract(self) -> State:
        """Shapes, dtypes and shardings of the state in a checkpoint; placeholders for what is on disk."""
        folder = self._folder
        if folder is None:
            return self._in_order

        def place(path: Any, like: jax.ShapeDtypeStruct, saved: jax.ShapeDtypeStruct) -> Any:
            assert like.sharding is not None, "a state is on the mesh"
            on_host = like.sharding.memory_kind == PINNED
            return self._rows(path, like, lambda: DiskArray(folder, like)) if on_host else saved

        return jax.tree_util.tree_map_with_path(place, self._abstract, self._in_order)

    @cached_property
    def _in_order(self) -> State:
        """Shapes, dtypes and shardings of the state with its layers in order."""
        saved = map(self._saved_leaf, self._layers(self._abstract), self._orders(self._abstract))
        return self._with_layers(self._abstract, list(saved))

    def outgoing(self, state: State) -> State:
        """`state` with its layers in order, to be saved; what is on disk stays there until it is written.

        Raises `UserError` where an update of what is on disk was interrupted.
        """
        if self._folder is None:
            return self.in_order(state)
        check_whole(state)
        rows = lambda path, leaf: self._rows(path, leaf, lambda: leaf) if isinstance(leaf, DiskArray) else leaf
        return jax.tree_util.tree_map_with_path(rows, state)

    def in_order(self, state: State) -> State:
        """`state`, of JAX's arrays, with its layers in order; those that had to be moved are in pinned host memory."""
        if self._order.in_order:
            return state
        stacks = zip(self._layers(state), self._orders(state), self._layers(self._in_order), strict=True)
        moved = []
        for stack, order, saved in stacks:
            where = _on_device(saved.sharding)
            move = self._move(_collected, order, where, where)
            moved.append(_put(move(_here(stack)), where.with_memory_kind(PINNED)))
        return self._with_layers(state, moved)

    def incoming(self, saved: State) -> State:
        """A restored state in the form that the step takes; rows that only pad the stacks are zero. Uses `saved` up."""
        if self._order.in_order or self._folder is not None:
            return saved
        stacks = zip(self._layers(saved), self._orders(saved), self._layers(self._abstract), strict=True)
        moved = []
        for stack, order, like in stacks:
            move = self._move(_spread, order, _on_device(stack.sharding), _on_device(like.sharding))
            moved.append(_put(move(_here(stack)), like.sharding))
            stack.delete()
        return self._with_layers(saved, moved)

    def _move(self, function: Callable[..., jax.Array], order: StackOrder, where: Any, target: Any) -> Any:
        """`function` of stacks, compiled for this order, their sharding in a checkpoint and that of the result."""
        key = function, order, where, target
        if key not in self._compiled:
            self._compiled[key] = jax.jit(partial(function, where=where, order=order), out_shardings=target)
        return self._compiled[key]

    def _rows(self, path: Any, like: Any, file: Callable[[], DiskArray]) -> DiskRows:
        """The part in a checkpoint of a disk array like `like`, at `path` of the state."""
        numbers, shape = None, like.shape
        if _is_stack(path) and not self._order.in_order:
            order = self._order.stack_at(path)
            numbers, shape = tuple(order.places.tolist()), self._saved_leaf(like, order).shape
        return DiskRows(shape, np.dtype(like.dtype), like.sharding.shard_shape(like.shape), file, numbers)

    def _layers(self, state: State) -> list[Any]:
        return [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state) if _is_stack(path)]

    def _orders(self, state: State) -> list[StackOrder]:
        """The order of each of `_layers`."""
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(state) if _is_stack(path)]
        return list(map(self._order.stack_at, paths))

    def _with_layers(self, state: State, stacks: list[Any]) -> State:
        """`state` with its stacks of layers replaced, in the order of `_layers`."""
        rest = iter(stacks)
        replace = lambda path, leaf: next(rest) if _is_stack(path) else leaf
        return jax.tree_util.tree_map_with_path(replace, state)

    def _saved_leaf(self, leaf: jax.ShapeDtypeStruct, order: StackOrder) -> jax.ShapeDtypeStruct:
        if self._order.in_order:
            return leaf
        layers = len(order.layers)
        sharding = leaf.sharding
        assert isinstance(sharding, NamedSharding), "a state is on the mesh"
        shape = (layers, *leaf.shape[1:])
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=_fitting(sharding, shape))


def _fitting(sharding: NamedSharding, shape: tuple[int, ...]) -> NamedSharding:
    """`sharding`, with the pipe axis on the first dim of `shape`, other than the rows, that divides by it as well."""
    sizes = sharding.mesh.shape
    dims = [tuple(a for a in axes_of_dim(sharding.spec, dim) if a != "pipe") for dim in range(len(shape))]
    for dim, axes in list(enumerate(dims))[1:]:
        if shape[dim] % (sizes["pipe"] * int(np.prod([sizes[axis] for axis in axes]))) == 0:
            dims[dim] = (*axes, "pipe")
            break
    return NamedSharding(
        sharding.mesh, PartitionSpec(*[axes or None for axes in dims]), memory_kind=sharding.memory_kind
    )


def _collected(stack: jax.Array, where: NamedSharding, order: StackOrder) -> jax.Array:
    """The layers of a stack in the order of the model."""
    return jnp.take(jax.lax.with_sharding_constraint(stack, where), jnp.asarray(order.row_of_layer), axis=0)


def _spread(stack: jax.Array, where: NamedSharding, order: StackOrder) -> jax.Array:
    """The inverse of `_collected`."""
    places = order.places
    rows = jnp.take(stack, jnp.asarray(np.maximum(places, 0)), axis=0)
    real = jnp.asarray(places != PADDING).reshape(-1, *[1] * (stack.ndim - 1))
    return jax.lax.with_sharding_constraint(jnp.where(real, rows, jnp.zeros_like(rows)), where)


def _here(stack: jax.Array) -> jax.Array:
    """A stack in device memory."""
    return jax.device_put(stack, _on_device(stack.sharding))


def _put(stack: jax.Array, where: NamedSharding) -> jax.Array:
    """A stack where it is to be, once it is there, so that no two are moved at a time."""
    return jax.device_put(stack, where).block_until_ready()


def _on_device(sharding: Any) -> NamedSharding:
    """The parts of a `NamedSharding`, in device memory."""
    return NamedSharding(sharding.mesh, sharding.spec)


def _is_stack(path: Any) -> bool:
    """Whether a leaf of the state is under `layers`: all of those are stacked."""
    return any(getattr(key, "key", None) == LAYERS for key in path)
