"""MiniMax-Text-01: lightning attention and attention with rotary embeddings, experts, and factors of residuals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import ATTENTION, EMBEDDING, GROUPED_SIZES, HEAD, HEAD_DIM, NORM, NORMS, SILU, TIED
from jaxpar.interop.families.mixtral import EXPERTS
from jaxpar.interop.mapping.expert_keys import UNUSED, RoutedExperts
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.layer_keys import GLOBAL, LINEAR, layer_types
from jaxpar.interop.mapping.linear_keys import with_state
from jaxpar.interop.mapping.rope_keys import Rope

_SIZES = LinearAttentionConfig(norm_epsilon=1e-6)
"""Heads and widths are those of attention; the epsilon is transformers', which no key states."""
_PREFIXES = {LINEAR: "linear_attn", GLOBAL: "full_attn"}
_FACTORS = (("alpha_factor", "stream"), ("beta_factor", "output"))


@dataclass(frozen=True)
class MiniMaxMixers:
    """The mixer of each layer, and the factors of residuals by the type of the layer."""

    keys: tuple[str, ...] = (
        "layer_types",
        *(f"{prefix}_{theirs}" for prefix in (*_PREFIXES.values(), "mlp") for theirs, _ in _FACTORS),
    )

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        default = lambda hf_config, layers: [LINEAR if layer % 2 else GLOBAL for layer in range(layers)]
        types = layer_types(hf_config, layers, default, (LINEAR, GLOBAL))

        def factors(block: str, prefix: str) -> dict[str, float]:
            return {f"{block}_{ours}": float(hf_config.positive(f"{prefix}_{theirs}", 1)) for theirs, ours in _FACTORS}

        behind = factors("mlp", "mlp")
        of_type = {
            one: {"mixer": mixer, "linear_attention": _SIZES, "residual": factors("mixer", _PREFIXES[one]) | behind}
            for one, mixer in ((LINEAR, "lightning"), (GLOBAL, "attention"))
        }
        return [of_type[one] for one in types]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        written: dict[str, object] = {"layer_types": [LINEAR if with_state(model) else GLOBAL for model in models]}
        for one, prefix in _PREFIXES.items():
            model = next((model for model in models if with_state(model) == (one == LINEAR)), None)
            for theirs, ours in _FACTORS:
                written[f"{prefix}_{theirs}"] = 1 if model is None else getattr(model.residual, f"mixer_{ours}")
        return written | {f"mlp_{theirs}": getattr(models[0].residual, f"mlp_{ours}") for theirs, ours in _FACTORS}


_MIXER = "model.layers.{layer}.self_attn"
_INWARD = " ".join(f"layers.mixer.{name}" for name in ("query", "key", "value"))

MINIMAX = Family(
    name="minimax",
    model_type="minimax",
    architecture="MiniMaxForCausalLM",
    presets="MiniMax-Text-01 in transformers' format",
    tensors=(
        EMBEDDING,
        *ATTENTION,
        Tensor(f"{_MIXER}.norm.weight", "layers.mixer.output_norm", Form.VECTOR),
        Tensor(f"{_MIXER}.qkv_proj.weight", _INWARD, by_head=True),
        Tensor(f"{_MIXER}.out_proj.weight", "layers.mixer.output"),
        Tensor(f"{_MIXER}.output_gate.weight", "layers.mixer.gate"),
        *EXPERTS,
        *NORMS,
        Tensor("model.layers.{layer}.input_layernorm.weight", "layers.mixer_norm.scale", Form.VECTOR),
        NORM,
        HEAD,
    ),
    model={"norm": "rmsnorm", "norm_placement": "stream", "activation": "swiglu"},
    entries=(
        *GROUPED_SIZES,
        HEAD_DIM,
        SILU,
        Same("rms_norm_eps", "norm_epsilon", default=1e-5),
        Only("sliding_window", (None,)),
        TIED,
    ),
    layer_entries=(
        Rope(base=1000000.0),
        MiniMaxMixers(),
        RoutedExperts(("num_local_experts", "num_experts")),
    ),
    unused=(*UNUSED, "router_jitter_noise", "block_size"),
    buffers=("rotary_emb.inv_freq", "slope_rate", "query_decay", "key_decay", "diagonal_decay"),
)
