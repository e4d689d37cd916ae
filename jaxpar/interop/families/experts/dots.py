"""dots.llm1: Qwen 3's attention and DeepSeek-V3's experts."""

from __future__ import annotations

from jaxpar.interop.families.deepseek import CORRECTION_BIAS, SHARED
from jaxpar.interop.families.llama import (
    ATTENTION,
    ATTENTION_BIAS,
    EMBEDDING,
    FEED_FORWARD,
    GROUPED_SIZES,
    HEAD,
    HEAD_DIM,
    NORM,
    NORM_EPSILON,
    NORMS,
    QK_NORMS,
    SILU,
    TIED,
)
from jaxpar.interop.mapping.deepseek_keys import DeepSeekExperts
from jaxpar.interop.mapping.expert_keys import EXPERTS
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.mapping.layer_keys import Windows, from_max_window_layers
from jaxpar.interop.mapping.rope_keys import Rope


def _windows(hf_config: HFConfig, layers: int) -> list[str]:
    """The layers from index `max_window_layers` on, whose default in transformers is 62 here."""
    return from_max_window_layers(HFConfig(hf_config.file, {"max_window_layers": 62, **hf_config.values}), layers)


DOTS1 = Family(
    name="dots1",
    model_type="dots1",
    architecture="Dots1ForCausalLM",
    presets="dots.llm1",
    tensors=(
        EMBEDDING, *ATTENTION, *QK_NORMS, *FEED_FORWARD, *EXPERTS, CORRECTION_BIAS, *SHARED, *NORMS, NORM, HEAD,
    ),
    model={"norm": "rmsnorm", "activation": "swiglu", "qk_norm": True},
    entries=(*GROUPED_SIZES, HEAD_DIM, SILU, NORM_EPSILON, ATTENTION_BIAS, TIED),
    layer_entries=(
        Rope(),
        Windows(_windows, beside=("max_window_layers",), absent=4096),
        # Its publisher names the score function by the method of choice.
        DeepSeekExperts("sigmoid", scores=("sigmoid", "noaux_tc")),
    ),
    unused=("output_router_logits", "use_sliding_window"),
)  # fmt: skip
