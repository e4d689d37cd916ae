"""The weights of another model in place of the initial ones: each process reads what its devices hold."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from jaxpar.interop.mapping.form import Region
from jaxpar.interop.sources.source import WeightSource, read_part
from jaxpar.layout.state import TrainState
from jaxpar.layout.step_layout import StepLayout, shardings
from jaxpar.mesh.parameters import ParamSpec, Weights
from jaxpar.training.residency.on_device import OnDevice

INIT_FROM = "run.init_from"
"""The key of the configuration that names them."""


def begun_from(source: WeightSource, state: TrainState, residency: OnDevice) -> TrainState:
    """A state before the first step, with the weights of `source`, which fit; it is used up.

    If some weights are frozen, they are those of `source`, and the trained ones stay as they are.
    """
    layout = residency.layout
    if layout.frozen:
        for leaf in jax.tree.leaves(state.frozen):
            leaf.delete()
        return state._replace(frozen=frozen_weights(source, layout, residency.mesh))
    reads = jax.tree_util.tree_map_with_path(
        lambda path, spec: read_part(source, path, spec, layout.order),
        layout.specs,
        is_leaf=lambda leaf: isinstance(leaf, ParamSpec),
    )
    return residency.with_weights(state, reads)


def frozen_weights(source: WeightSource, layout: StepLayout, mesh: Mesh) -> Weights:
    """The frozen weights of a state, from `source`."""
    dtype = jnp.dtype(layout.plan.dtypes.storage)

    def placed(path: Any, spec: ParamSpec, where: NamedSharding) -> jax.Array:
        read = read_part(source, path, spec, layout.order)
        return jax.make_array_from_callback(spec.shape, where, lambda region: read(_bounded(region)).astype(dtype))

    return jax.tree_util.tree_map_with_path(
        placed, layout.frozen, shardings(mesh, layout.state.frozen), is_leaf=lambda leaf: isinstance(leaf, ParamSpec)
    )


def _bounded(region: Region | None) -> Region:
    assert region is not None, "an array has regions"
    return region
