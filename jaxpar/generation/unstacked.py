"""Weights with an array of its own for each layer, as generation reads them.

A training step loops over layers that are stacked in one array. XLA copies a layer out of the stack before it is
multiplied, on CPUs and GPUs alike: nothing beside the products of a long sequence, but twice what a token's products
themselves read and write.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import DictKey, KeyPath

from jaxpar.interop.adapters.adapter import AdapterSource
from jaxpar.interop.sources.source import read_part
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.layer_order import LAYERS, LayerOrder
from jaxpar.mesh.parameters import ADAPTERS, ModelTree, Partitions, Weights


def unstacked(weights: Weights, order: LayerOrder) -> Weights:
    """`weights` with, for each kind of layers, a list of the weights of each of its layers.

    On CPUs nothing is copied; on GPUs each layer is.
    """
    return _map_stacks(weights, order, _layer)


def is_unstacked(weights: Weights) -> bool:
    """Whether the layers of `weights` are lists."""
    return isinstance(next(iter(weights[LAYERS].values())), list)


def unstacked_layout(layout: Partitions, order: LayerOrder) -> Partitions:
    """The partitions of `unstacked` weights, from those of the stacks."""
    return _map_stacks(layout, order, lambda stack, row: PartitionSpec(*stack[1:]))


def with_adapters(weights: Weights, layout: StepLayout, source: AdapterSource) -> Weights:
    """`unstacked` weights whose factors are those of the adapters of `source`, of the same stack."""
    specs = layout.specs[LAYERS]

    def placed(kind: str, row: int, path: KeyPath, leaf: jax.Array) -> jax.Array:
        spec = reduce(lambda tree, key: tree[key.key], path, specs[kind])
        if ADAPTERS not in spec.axes:
            return leaf
        read = read_part(source, (DictKey(LAYERS), DictKey(kind), *path), spec, layout.order)
        part = lambda region: read((slice(row, row + 1), *region))[0].astype(leaf.dtype)
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, part)

    layers = {
        kind: [jax.tree_util.tree_map_with_path(partial(placed, kind, row), tree) for row, tree in enumerate(rows)]
        for kind, rows in weights[LAYERS].items()
    }
    return {**weights, LAYERS: layers}


def _map_stacks[Leaf](tree: ModelTree[Leaf], order: LayerOrder, layer: Callable[[Leaf, int], Leaf]) -> ModelTree[Leaf]:
    is_leaf = lambda leaf: isinstance(leaf, PartitionSpec)
    row_of = lambda kind, row: jax.tree.map(lambda leaf: layer(leaf, row), tree[LAYERS][kind], is_leaf=is_leaf)
    layers = {kind: [row_of(kind, row) for row in range(stack.rows)] for kind, stack in order.stacks.items()}
    return {**tree, LAYERS: layers}


def _layer(stack: jax.Array, row: int) -> jax.Array:
    """A row of an array whose first dim is not split, with the sharding of its other dims."""
    where = stack.sharding
    assert isinstance(where, NamedSharding), "weights are on a mesh"
    parts = []
    for shard in stack.addressable_shards:
        # A view of the memory of a CPU is not copied when it becomes an array.
        whole = np.asarray(shard.data) if shard.device.platform == "cpu" else shard.data
        parts.append(jax.device_put(whole[row], shard.device))
    sharding = NamedSharding(where.mesh, PartitionSpec(*where.spec[1:]))
    return jax.make_array_from_single_device_arrays(stack.shape[1:], sharding, parts)
