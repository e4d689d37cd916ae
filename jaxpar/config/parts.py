"""Registry of the layer parts and data sources that the configuration can name, and of what implements them.

An implementation is named as `module:name`. `jaxpar.layers.declared` imports it when a layer is described or built, and
`jaxpar.data.sources` when data is opened: nothing here imports it.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class DataSource:
    """A source of data."""

    opener: str
    """`module:function` from (`DataConfig`, `model.vocab`, seed) to the opened data."""
    keys: tuple[str, ...] = ()
    """Keys of `data` that this source reads and some others do not."""
    pairs: bool = False
    """Whether its documents can be pairs of answers, for `loss.name: dpo`."""


DATA_SOURCES: dict[str, DataSource] = {
    "stdlib": DataSource("jaxpar.data.stdlib:open_stdlib"),
    "tokens": DataSource(
        "jaxpar.data.token_sources:open_tokens",
        keys=("path", "sources", "heldout_path", "separator", "long_conversations"),
        pairs=True,
    ),
    "synthetic": DataSource("jaxpar.data.synthetic:open_synthetic"),
}
"""What `data.source` can be."""
