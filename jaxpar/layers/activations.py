"""Names of the activations inside a layer; for each name the plan decides: saved, recomputed or offloaded."""

from __future__ import annotations

from collections.abc import Iterable

import jax
from jax.ad_checkpoint import checkpoint_name

from jaxpar.layers.declaration import Activation

LAYER_INPUT = "layer_input"
"""The activation that the others are recomputed from: saved or offloaded, never recomputed. The layer loop keeps it."""


def name_activation(x: jax.Array, name: str, declared: Iterable[Activation]) -> jax.Array:
    """Mark `x` as the activation `name`, which is among those that its part or layer declares."""
    assert any(one.name == name for one in declared), f"{name!r} is not an activation that is declared here"
    return checkpoint_name(x, name)
