"""Named activations inside a layer; for each name the plan decides: saved, recomputed or offloaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import jax
from jax.ad_checkpoint import checkpoint_name

LAYER_INPUT = "layer_input"
"""The activation that the others are recomputed from: saved or offloaded, never recomputed. The layer loop keeps it."""


type Dims = tuple[str, ...]
"""Logical axes, as `ParamSpec` has them: `embed`, `heads`, `kv_heads`, `head_dim`, `value_dim`, `mlp`."""


@dataclass(frozen=True)
class Activation:
    """A named activation: what the plan saves, recomputes or offloads."""

    name: str
    dims: Dims
    """Dims of a token's part of it."""
    between: bool = False
    """It is between the blocks, where tensor ranks split the sequence; inside them they split heads or hidden width."""
    float32: bool = False
    """It is float32 whatever the compute dtype is."""
    cheap: bool = False
    """Elementwise work recomputes it from what `gemm_last` keeps, or the expansion of a latent vector: that preset
    drops it."""
    core: bool = False
    """Attention itself makes it from queries, keys and values: `selective` drops it."""


def name_activation(x: jax.Array, name: str, declared: Iterable[Activation]) -> jax.Array:
    """Mark `x` as the activation `name`, which is among those that its part or layer declares."""
    assert any(one.name == name for one in declared), f"{name!r} is not an activation that is declared here"
    return checkpoint_name(x, name)
