"""EXAONE 4: norms on outputs, and layers with a window, whose global neighbours have no positions."""

from __future__ import annotations

from jaxpar.interop.families.llama import (
    ATTENTION,
    EMBEDDING,
    FEED_FORWARD,
    GROUPED_SIZES,
    HEAD,
    HEAD_DIM,
    NORM,
    OUTPUT_NORMS,
    QK_NORMS,
    SILU,
    TIED,
)
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import HFConfig, Same
from jaxpar.interop.mapping.layer_keys import GLOBAL, LOCAL, RopeOfWindows, Windows
from jaxpar.interop.mapping.rope_keys import Rope


def _types(hf_config: HFConfig, layers: int) -> list[str]:
    """Layers with the window, except every `sliding_window_pattern`-th."""
    period = hf_config.integer("sliding_window_pattern", 4)
    return [LOCAL if (layer + 1) % period else GLOBAL for layer in range(layers)]


EXAONE4 = Family(
    name="exaone4",
    model_type="exaone4",
    architecture="Exaone4ForCausalLM",
    presets="EXAONE 4.0 1.2B and 32B",
    tensors=(EMBEDDING, *ATTENTION, *QK_NORMS, *FEED_FORWARD, *OUTPUT_NORMS, NORM, HEAD),
    model={"norm": "rmsnorm", "norm_placement": "post", "activation": "swiglu", "qk_norm": True},
    entries=(*GROUPED_SIZES, HEAD_DIM, SILU, Same("rms_norm_eps", "norm_epsilon", default=1e-5), TIED),
    layer_entries=(
        Rope(),
        Windows(_types, absent=4096, beside=("sliding_window_pattern",)),
        RopeOfWindows(_types, absent=4096),
    ),
)
