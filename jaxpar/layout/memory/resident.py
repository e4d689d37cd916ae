"""Which weights' state, and which layers, stay on the device when the others are offloaded to the host's memory."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxpar.config import Config
from jaxpar.config.plan import Plan
from jaxpar.layout.memory.estimate import MemoryModel, case_of
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.parameters import map_specs
from jaxpar.mesh.placements import Placement, local_shape


class LayerBytes(NamedTuple):
    """Bytes of one layer on one device."""

    master: int
    weights: int
    """In storage placement and dtype."""
    gradients: int
    """Accumulated."""

    @property
    def stays(self) -> int:
        """Bytes of a layer that stays on the device."""
        return self.weights + self.gradients


def layer_bytes(layout: StepLayout) -> LayerBytes:
    """Of each layer."""

    def size(placement: Placement) -> int:
        width = jnp.dtype(placement.dtype).itemsize
        local = lambda spec, where: width * prod(local_shape(spec.shape, where, layout.plan.axes))
        sizes = map_specs(local, layout.specs[LAYERS], placement.layout[LAYERS])
        return sum(jax.tree.leaves(sizes)) // layout.order.layers_per_chunk

    roles = layout.placements
    return LayerBytes(size(roles.optimizer), size(roles.storage), size(roles.gradient))


def host_gradient_bytes(layout: StepLayout) -> int:
    """Bytes of gradients in host memory, for one device."""
    layers = layout.plan.host_layers
    return layers * layer_bytes(layout).gradients if layers else 0


def layers_that_stay(each: LayerBytes, layers: int, budget: int) -> int:
    """How many layers' weights and gradients stay on the device, `budget` bytes of them; these are the last ones.

    A step uses layers from the first to the last and back, so each that stays saves the same. Room for two layers in
    transit is reserved in addition; where all but two stay, these two stay as well.
    """
    kept = budget // each.stays
    return layers if kept >= layers - 2 else kept


def with_residency(config: Config, plan: Plan) -> Plan:
    """`plan` with the weights and layers that stay on the device, by the bytes that `config` allows for them."""
    memory = config.memory
    if plan.optimizer_offload == "host" and memory.optimizer_resident:
        names = MemoryModel(config).resident(case_of(config, plan), memory.optimizer_resident)
        plan = replace(plan, resident_weights=names)
    if plan.weights_offload == "host":
        layout = StepLayout(config, plan)
        layers = layout.order.layers_per_chunk
        stay = layers_that_stay(layer_bytes(layout), layers, memory.weights_resident)
        plan = replace(plan, host_layers=layers - stay)
    return plan
