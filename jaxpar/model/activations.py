"""Names of the activations inside a decoder layer; what the plan decides per name is saved, recomputed or offloaded."""

from __future__ import annotations

import jax
from jax.ad_checkpoint import checkpoint_name

from jaxpar.memory.remat import LAYER_INPUT

ACTIVATIONS = (
    LAYER_INPUT,
    "attention_input",
    "query",
    "key",
    "value",
    "attention_output",
    "attention_lse",
    "attention_projected",
    "attention_residual",
    "mlp_input",
    "mlp_gate",
    "mlp_up",
    "mlp_activated",
    "mlp_hidden",
    "mlp_projected",
)
"""In the order in which a layer computes them; a model has those that its norms and its feed-forward make.
`layer_input` is kept by the layer loop; `attention_output` and `attention_lse` are named by the attention kernels,
which keep them for their backward."""


def name_activation(x: jax.Array, name: str) -> jax.Array:
    """Mark `x` as the activation `name`."""
    assert name in ACTIVATIONS, f"{name!r} is no activation of the decoder"
    return checkpoint_name(x, name)
