"""The weights of a pipeline laid out for generation, which has one stage: the pipe axis shards them instead.

Each device of a stage keeps its part of a weight's dims, cut further into a part for each stage. So weights outside the
layers are only cut where they are, and each matrix of a layer is summed over the pipe axis, on which all stages but its
own have zeros. No device ever holds more than that part of one matrix beside the weights of both layouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Wrapped
from jaxtyping import Array, Float, Int

from jaxpar.config import Config
from jaxpar.generation.layout import generation_layout
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.axes import MESH_AXES
from jaxpar.mesh.build import mapped
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.parameters import Arrays, Weights
from jaxpar.mesh.rules import axes_of_dim

ZERO = 3
"""The ZeRO stage of the layout: each token gathers every layer, one at a time."""


def joined_mesh(mesh: Mesh) -> Mesh:
    """The devices of a mesh whose fsdp axis takes those of its pipe axis too, as the inner ones."""
    sizes = dict(mesh.shape)
    sizes |= {"fsdp": sizes["fsdp"] * sizes["pipe"], "pipe": 1}
    devices = np.moveaxis(mesh.devices, MESH_AXES.index("pipe"), MESH_AXES.index("fsdp"))
    return Mesh(devices.reshape([sizes[axis] for axis in MESH_AXES]), MESH_AXES, axis_types=mesh.axis_types)


def joined_weights(weights: Weights, layout: StepLayout, mesh: Mesh, config: Config) -> Weights:
    """Weights of a pipeline on its `joined_mesh`, in the storage placement of generation and `unstacked`.

    Args:
        weights: of the whole model, on the devices.
        layout: of the run that has them.
        mesh: of the run.
        config: of generation, without a pipeline.
    """
    target = joined_mesh(mesh)
    placement = generation_layout(config, target, zero=ZERO).placements.storage
    dtype = placement.dtype
    embed_and_head = {name: leaf for name, leaf in weights.items() if name != LAYERS}
    end_specs = {name: leaf for name, leaf in placement.layout.items() if name != LAYERS}
    joined = jax.tree.map(
        lambda leaf, spec: _to_mesh(target, spec, _cut(mesh, spec, dtype)(_to_device_memory(mesh, leaf))),
        embed_and_head,
        end_specs,
    )
    layers: dict[str, list[Arrays]] = {}
    for kind, stack in layout.order.stacks.items():
        stacked, specs = weights[LAYERS][kind], placement.layout[LAYERS][kind]
        leaves, tree = jax.tree.flatten(stacked)
        flat = tree.flatten_up_to(specs)
        moved = [
            list(_rows(mesh, target, leaf, PartitionSpec(*spec[1:]), dtype, stack.row_of_layer))
            for leaf, spec in zip(leaves, flat, strict=True)
        ]
        rows = [tree.unflatten(list(row)) for row in zip(*moved, strict=True)]
        layers[kind] = rows
    return {**joined, LAYERS: layers}


def _rows(
    mesh: Mesh, target: Mesh, stack: jax.Array, spec: PartitionSpec, dtype: str, rows: Int[np.ndarray, " layers"]
) -> Iterator[jax.Array]:
    """Rows of a stack, each in the partition `spec` on the mesh without a pipeline."""
    stack = _to_device_memory(mesh, stack)
    move = row_program(mesh, _spec_of(stack), spec, dtype)
    return (_to_mesh(target, spec, move(stack, np.int32(row))) for row in rows)


@cache
def row_program(mesh: Mesh, stored: PartitionSpec, spec: PartitionSpec, dtype: str) -> Wrapped:
    """Compiled (stack, row) -> the row on all stages, in the partition `spec` of the mesh without a pipeline."""

    def row_of(stack: Float[Array, "rows ..."], row: Int[Array, ""]) -> Float[Array, "..."]:
        index = row - lax.axis_index("pipe") * stack.shape[0]
        here = (index >= 0) & (index < stack.shape[0])
        value = lax.dynamic_index_in_dim(stack, jnp.clip(index, 0, stack.shape[0] - 1), keepdims=False)
        return reduce_sum(jnp.where(here, value.astype(dtype), 0), ("pipe",))

    layouts = stored, PartitionSpec()
    function = mapped(row_of, mesh, dtype, layouts, PartitionSpec(*stored[1:]))
    return jax.jit(function, out_shardings=NamedSharding(mesh, _with_stages(spec)))


@cache
def _cut(mesh: Mesh, spec: PartitionSpec, dtype: str) -> Wrapped:
    """Compiled: a weight outside the layers in the partition `spec` of the mesh without a pipeline."""
    return jax.jit(lambda leaf: leaf.astype(dtype), out_shardings=NamedSharding(mesh, _with_stages(spec)))


def _with_stages(spec: PartitionSpec) -> PartitionSpec:
    """A partition of the mesh without a pipeline, on that with one."""
    axes = [axes_of_dim(spec, dim) for dim in range(len(spec))]
    return PartitionSpec(
        *(sum((("fsdp", "pipe") if axis == "fsdp" else (axis,) for axis in dim_axes), ()) for dim_axes in axes)
    )


def _to_mesh(mesh: Mesh, spec: PartitionSpec, array: jax.Array) -> jax.Array:
    """The same parts on the same devices, as an array of the other mesh."""
    parts = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, NamedSharding(mesh, spec), parts)


def _to_device_memory(mesh: Mesh, leaf: jax.Array) -> jax.Array:
    """A weight in the devices' memory: that of offloaded ones is the host's."""
    return jax.device_put(leaf, NamedSharding(mesh, _spec_of(leaf)))


def _spec_of(leaf: jax.Array) -> PartitionSpec:
    where = leaf.sharding
    assert isinstance(where, NamedSharding), "weights are on a mesh"
    return where.spec
