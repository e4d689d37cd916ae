"""Registry of the layer parts that the configuration can name, and of the classes that implement them.

The values are `module:class`, which `jaxpar.layers.declared` imports when a layer is described or built: nothing here
imports them.
"""

from __future__ import annotations

FEED_FORWARDS: dict[str, str] = {
    "swiglu": "jaxpar.layers.feed_forward.gated:SwiGLU",
    "clamped_swiglu": "jaxpar.layers.feed_forward.gated:ClampedSwiGLU",
    "geglu": "jaxpar.layers.feed_forward.gated:GeGLU",
    "gelu": "jaxpar.layers.feed_forward.plain:GELU",
    "relu2": "jaxpar.layers.feed_forward.plain:SquaredReLU",
}
"""What `model.activation` can be."""

ROUTERS = (
    "top_k_softmax", "softmax_top_k", "switch", "gshard", "noisy_top_k", "sigmoid", "k_top_1", "hash", "sam", "cosine",
    "dense_to_sparse", "base", "expert_choice",
)  # fmt: skip
"""What `model.experts.router` can be: the keys of `jaxpar.layers.experts.routers.ROUTERS`."""
