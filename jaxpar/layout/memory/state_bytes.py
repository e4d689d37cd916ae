"""Bytes of the state between steps, from shapes alone."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import jax

from jaxpar.hardware.host import PINNED
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.placements import Placement, bytes_per_device


def state_bytes(layout: StepLayout) -> int:
    """Bytes of one device's master weights and moments, wherever they are, and of its frozen weights."""
    return bytes_of(jax.tree.leaves(layout.abstract_state()))


def frozen_bytes(layout: StepLayout) -> int:
    """The part of them that is frozen weights."""
    return bytes_of(jax.tree.leaves(layout.abstract_state().frozen))


def offloaded_state_bytes(layout: StepLayout, *, master_alone: bool = False) -> int:
    """The part of them that is in pinned memory of the host, or on disk; or of that part only the master weights."""
    state = layout.abstract_state()
    leaves = jax.tree.leaves(state.master if master_alone else state)
    return bytes_of([leaf for leaf in leaves if leaf.sharding.memory_kind == PINNED])


def bytes_of(leaves: list[jax.ShapeDtypeStruct]) -> int:
    """Bytes of arrays, on one device."""
    return sum(prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


class LayerBytes(NamedTuple):
    """Bytes of one layer on one device."""

    master: int
    weights: int
    """Bytes in storage placement and dtype."""
    gradients: int
    """Bytes in the gradient accumulators."""


def layer_bytes(layout: StepLayout) -> LayerBytes:
    """The mean over the layers of a chunk."""
    specs, layers = {LAYERS: layout.specs[LAYERS]}, layout.order.layers_per_chunk

    def size(role: Placement) -> int:
        stacks = Placement({LAYERS: role.layout[LAYERS]}, role.dtype)
        return bytes_per_device(specs, stacks, layout.plan.axes) // layers

    roles = layout.placements
    return LayerBytes(size(roles.optimizer), size(roles.storage), size(roles.gradient))


def host_layers(layout: StepLayout) -> int:
    """Number of layers whose weights and gradients are in host memory during a step."""
    return layout.order.layers_per_chunk if layout.plan.weights_offload == "host" else 0


def host_gradient_bytes(layout: StepLayout) -> int:
    """Bytes of gradients in host memory, for one device."""
    return host_layers(layout) * layer_bytes(layout).gradients
