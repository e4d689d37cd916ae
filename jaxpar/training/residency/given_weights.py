"""The weights of another model in place of the initial ones: each process reads what its devices hold."""

from __future__ import annotations

import jax

from jaxpar.interop.sources.source import WeightSource, read_part
from jaxpar.layout.state import TrainState
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.training.residency.protocol import Residency

INIT_FROM = "run.init_from"
"""The key of the configuration that names them."""


def begun_from(source: WeightSource, state: TrainState, residency: Residency) -> TrainState:
    """A state before the first step, with the weights of `source`, which fit; it is used up."""
    layout = residency.layout
    reads = jax.tree_util.tree_map_with_path(
        lambda path, spec: read_part(source, path, spec, layout.order),
        layout.specs,
        is_leaf=lambda leaf: isinstance(leaf, ParamSpec),
    )
    return residency.with_weights(state, reads)
