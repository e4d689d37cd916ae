"""Bytes that generation takes on a device, from the layout alone: weights, cache, and what a token's draw works on."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import PyTree

from jaxpar.config.counting import padded_vocab
from jaxpar.generation.functions import GenerationFunctions
from jaxpar.generation.layout import BY_PART, BY_ROW, bucket, prompt_bucket
from jaxpar.generation.pages import largest_request, room_of
from jaxpar.layers.block import Context, DecodedRows
from jaxpar.layers.declaration.columns import side_columns
from jaxpar.layers.declaration.weights import with_weights
from jaxpar.layout.step_layout import StepLayout, shardings
from jaxpar.memory.layer_shape import FLOAT32_BYTES
from jaxpar.mesh.axes import vary
from jaxpar.mesh.build import abstract_mesh, mapped
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.materialize import gather
from jaxpar.mesh.parameters import map_specs
from jaxpar.runtime.batch import FORWARD, BatchLayout

LOGITS = 4
"""Arrays [row, vocabulary] of float32 that a draw works on."""


class GenerationBytes(NamedTuple):
    """Bytes on one device."""

    weights: int
    """A copy of the weights, in the placement and dtype of generation."""
    cache: int
    """Keys, values and states of the tokens of rows in slots: the pages, and the slots of layers without pages."""
    prefixes: int
    """The cache of prompts that were read, which slots and pages copy."""
    logits: int
    """Logits of a token of each row, with the tokens that each row has."""
    read: int
    """Bytes of the cache that a token of each row reads, on average over its answer: shared pages once for each row."""

    @property
    def drawing(self) -> int:
        """The total beside the weights."""
        return self.cache + self.prefixes + self.logits


def generation_bytes(layout: StepLayout, prompts: int, answers: int, longest: int, new: int) -> GenerationBytes:
    """The bytes of generation, of prompts that take most.

    Args:
        layout: of generation (`generation_layout`); its weights may be sharded.
        prompts: that are continued together, on all devices.
        answers: rows to a prompt.
        longest: tokens of the longest prompt.
        new: tokens of an answer, at most.
    """
    axes = layout.plan.axes
    sizes = axes.data, axes.context, axes.tensor, prompts * answers, longest + new
    largest = largest_request(longest, new, answers, room_of(*sizes).page)
    room = room_of(*sizes, [largest] * prompts)
    each, page = cache_bytes(layout, room.capacity), room.page
    prompt = -(-prompt_bucket(longest, axes.context * axes.tensor) // page) * each.page + each.slot
    seen = sum(-(-length // page) for length in range(longest + 1, longest + new + 1)) / new
    return GenerationBytes(
        weight_bytes(layout),
        cache=room.pages * each.page + room.slots * each.slot,
        prefixes=-(-prompts // axes.data) * prompt,
        logits=room.slots * padded_vocab(layout.config.model) * (LOGITS * FLOAT32_BYTES + 1),
        read=round(room.slots * (seen * each.page + each.slot)),
    )


def weight_bytes(layout: StepLayout) -> int:
    """Bytes of a copy of the weights on one device, in the storage placement of a layout."""
    storage = layout.placements.storage
    placed = shardings(abstract_mesh(layout.plan.axes), storage.layout)
    sizes = map_specs(lambda spec: spec.shape, layout.specs)
    local = jax.tree.map(lambda where, shape: prod(where.shard_shape(shape)), placed, sizes)
    return jnp.dtype(storage.dtype).itemsize * sum(jax.tree.leaves(local))


class CacheBytes(NamedTuple):
    """Bytes of the cache on one device, over all layers."""

    page: int
    """A page, of the layers that have pages."""
    slot: int
    """A row of the others, whose window is shorter than rows or which have a state."""


def cache_bytes(layout: StepLayout, capacity: int) -> CacheBytes:
    """Bytes of the cache of rows of up to `capacity` tokens: nothing is allocated."""
    axes = layout.plan.axes
    mesh, functions = abstract_mesh(axes), GenerationFunctions(layout, capacity)
    ranks, length = axes.data, bucket(0, axes.context * axes.tensor)
    batch = BatchLayout(FORWARD, (ranks, length))
    kinds = layout.order.stacks
    partitions: dict[str, PyTree] = {
        kind: {block.part.name: block.cache for block in functions.stages.prototype(kind).blocks} for kind in kinds
    }
    of_kind: Any = lambda tree: {kind: tree[LAYERS][kind] for kind in kinds}
    first = lambda spec: PartitionSpec(*spec[1:])
    is_spec = lambda leaf: isinstance(leaf, PartitionSpec)
    stored = jax.tree.map(first, of_kind(layout.placements.storage.layout), is_leaf=is_spec)
    dtype = layout.placements.storage.dtype
    shapes = map_specs(lambda spec: jax.ShapeDtypeStruct(spec.shape[1:], dtype), of_kind(layout.specs))
    beside = side_columns(layout.config.model)
    stream = jax.ShapeDtypeStruct((ranks, length, beside.embed + beside.width(axes.tensor)), layout.plan.dtypes.compute)

    def prompt_caches(weights: PyTree, x: jax.Array, batch: PyTree, lengths: jax.Array) -> PyTree:
        x, batch, lengths = vary((x, batch, lengths))
        tokens, caches_of = functions.stages.token_context(batch), {}
        for kind in kinds:
            weight = gather(weights[kind], layout.placements, part=(LAYERS, kind), unstacked=True)
            layer = with_weights(functions.stages.prototype(kind), weight)
            rows = DecodedRows(lengths, capacity, functions.page)
            context = Context(jnp.int32(0), tokens[kind], _like_attention, train=False, rows=rows)
            caches_of[kind] = vary(layer.decode(x, None, context)[1])
        return caches_of

    inputs = stored, PartitionSpec(*BY_PART), batch.partitions, BY_ROW
    traced = mapped(prompt_caches, mesh, functions.dtype, inputs, partitions)
    abstract = batch.abstract(mesh), jax.ShapeDtypeStruct((ranks,), jnp.int32)
    caches = jax.eval_shape(traced, shapes, stream, *abstract)
    each = {True: 0, False: 0}
    for kind, stack in kinds.items():
        for block in functions.stages.prototype(kind).blocks:
            paged, name = block.paged(capacity), block.part.name
            arrays, where = caches[kind][name], shardings(mesh, partitions[kind][name])
            if paged:
                arrays = jax.tree.map(lambda array: _paged(array, functions.page), arrays)
            each[paged] += stack.rows * sum(jax.tree.leaves(jax.tree.map(_local_bytes, arrays, where)))
    return CacheBytes(each[True], each[False])


def _paged(array: jax.ShapeDtypeStruct, page: int) -> jax.ShapeDtypeStruct:
    """An array [row, heads, page, width] like one of more or fewer tokens."""
    return jax.ShapeDtypeStruct((*array.shape[:2], page, *array.shape[3:]), array.dtype)


def _like_attention(query: jax.Array, key: jax.Array, value: jax.Array, *others: PyTree) -> jax.Array:
    """An array like the output of attention, whose kernels are not needed for shapes."""
    del key, others
    return query[..., :1] * jnp.ones(value.shape[-1], value.dtype)


def _local_bytes(array: jax.ShapeDtypeStruct, where: NamedSharding) -> int:
    return array.dtype.itemsize * prod(where.shard_shape(array.shape))
