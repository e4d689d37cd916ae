"""The ops of a layer's programs: composed here from configuration and plan, so that a decoder names no number format.

Layers of a kind that share a row of a chunk run one program. Its key is opaque outside this file; None is the program
without any feature.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

import jax.numpy as jnp

from jaxpar.config.mappings.matmul import OF_TILES
from jaxpar.config.parts import feature
from jaxpar.config.plan import Plan
from jaxpar.config.schema import Config
from jaxpar.layers.block import Block
from jaxpar.layers.declaration.adaptation import AdapterStack, adaptation_of
from jaxpar.layers.ops.plain import Ops
from jaxpar.mesh.parameters import Nested, ParamSpec, map_specs
from jaxpar.mesh.placements import Placements, WeightPlacement


def program_of(config: Config, kind: str, layers: Collection[int]) -> Hashable:
    """The program of layers of a kind with such numbers in the model, which share a row of a chunk."""
    if config.precision.spikes is not None:
        return config.precision.spikes
    return None if config.precision.matmul is None else feature("quantized_groups")(config, kind, layers)


def ops_of(plan: Plan, program: Hashable) -> Ops:
    """The ops of a program."""
    overlap = plan.tensor_overlap
    if isinstance(program, AdapterStack):
        return feature("adapted_ops")(overlap)
    if isinstance(program, float):
        return feature("spiking_ops")(overlap, rate=program)
    return Ops(overlap) if program is None else feature("quantized_ops")(overlap, groups=program)


def split_backward_weights(blocks: Iterable[Block], specs: Nested[ParamSpec]) -> Nested[bool]:
    """The weights of a layer whose gradients a separate action computes where a backward is split. Those of routed
    matrices are computed with the gradients of their rows, which are exchanged in slices, in rounds whose number is a
    value on the device."""
    routed = {block.part.name for block in blocks if block.part.routed}
    return {
        name: map_specs(lambda spec, name=name: spec.matrix and name not in routed, part)
        for name, part in specs.items()
    }


def _multiplied(block: Block) -> set[str]:
    """The weights of a block that its dense groups of matmuls multiply with."""
    return {name for group in block.part.dense_groups for name in block.part.factors_of(*group.weights)}


def wide_matrices(
    config: Config,
    blocks: Iterable[Block],
    specs: Nested[ParamSpec],
    placed: Nested[WeightPlacement],
    placements: Placements,
) -> Nested[bool] | None:
    """The matrices of a layer whose gradients leave their products in the dtype in which they accumulate and travel,
    where that is wider than compute. Products of tiles make theirs in compute dtype, and of matrices with adapters
    nothing accumulates."""
    compute, gradient = (jnp.dtype(role.dtype) for role in (placements.compute, placements.gradient))
    if gradient.itemsize <= compute.itemsize or config.precision.matmul in OF_TILES or adaptation_of(config).frozen_by:
        return None
    wide = {block.part.name: _multiplied(block) for block in blocks if block.wide_gradients}

    def wide_weights(name: str, weights: Nested[ParamSpec], placed: Nested[WeightPlacement]) -> Nested[bool]:
        return {key: key in wide.get(name, ()) and placed[key].transport.gradient is None for key in weights}

    return {name: wide_weights(name, weights, placed[name]) for name, weights in specs.items()}
