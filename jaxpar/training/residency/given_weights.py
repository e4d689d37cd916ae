"""The weights of another model in place of the initial ones: each process reads what its devices hold."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from jaxpar.interop.mapping.form import ReadPart
from jaxpar.interop.sources.source import WeightSource, read_part
from jaxpar.layout.state import TrainState
from jaxpar.layout.step_layout import StepLayout, shardings
from jaxpar.mesh.parameters import ModelTree, ParamSpec, Specs, Weights
from jaxpar.training.residency.on_device import OnDevice

INIT_FROM = "run.init_from"
"""The key of the configuration that names them."""


def begun_from(source: WeightSource, state: TrainState, residency: OnDevice) -> TrainState:
    """A state before the first step, with the weights of `source`, which fit; it is used up.

    If some weights are frozen, they are those of `source`, and the trained ones stay as they are.
    """
    layout = residency.layout
    if not layout.frozen:
        return residency.with_weights(state, _reads(source, layout, layout.specs))
    for leaf in jax.tree.leaves(state.frozen):
        leaf.delete()
    return state._replace(frozen=frozen_weights(source, layout, residency.mesh))


def frozen_weights(source: WeightSource, layout: StepLayout, mesh: Mesh) -> Weights:
    """The frozen weights of a state, from `source`."""
    dtype = jnp.dtype(layout.plan.dtypes.storage)

    def placed(read: ReadPart, like: jax.ShapeDtypeStruct, where: NamedSharding) -> jax.Array:
        part: Any = cache(lambda region: read(region).astype(dtype))  # replicas have the same ones
        return jax.make_array_from_callback(like.shape, where, part)

    reads = _reads(source, layout, layout.frozen)
    return jax.tree.map(placed, reads, layout.state_shapes.frozen, shardings(mesh, layout.state.frozen))


def _reads(source: WeightSource, layout: StepLayout, specs: Specs) -> ModelTree[ReadPart]:
    """For each weight a function that returns a part of it."""
    return jax.tree_util.tree_map_with_path(
        lambda path, spec: read_part(source, path, spec, layout.order),
        specs,
        is_leaf=lambda leaf: isinstance(leaf, ParamSpec),
    )
