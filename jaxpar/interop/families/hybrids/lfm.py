"""LFM2: gated short convolutions in most layers, and attention with norms of queries and keys in the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import EMBEDDING, GROUPED_SIZES, HEAD, HEAD_DIM
from jaxpar.interop.mapping.expert_keys import UNUSED
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.layer_keys import GLOBAL, layer_types
from jaxpar.interop.mapping.rope_keys import Rope
from jaxpar.layers.experts.routers import options_of
from jaxpar.layers.linear_attention.mixer import sizes_of

_CONVOLUTION = "conv"
EPSILON = 1e-6
"""Added to the sum of a token's sigmoids in transformers' code."""
_ADJUSTED, _MULTIPLIER, _MULTIPLE = "block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of"


@dataclass(frozen=True)
class AdjustedWidth:
    """The width of the feed-forward: two thirds of the stated one, rounded up to a multiple, unless that is turned off;
    it is written as it is."""

    keys: tuple[str, ...] = ("intermediate_size", "block_ff_dim", _ADJUSTED, _MULTIPLIER, _MULTIPLE)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        key = "intermediate_size" if hf_config.get("block_ff_dim") is None else "block_ff_dim"  # which is in force
        width = hf_config.integer(key)
        if hf_config.flag(_ADJUSTED, default=True):
            width = int(2 * width / 3)
            if hf_config.get(_MULTIPLIER, 1.0) is not None:
                multiple = hf_config.integer(_MULTIPLE, 256)
                width = -(-int(hf_config.positive(_MULTIPLIER, 1.0) * width) // multiple) * multiple
        return {"mlp": hf_config.checked_value(key, width, "mlp")}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {"intermediate_size": model.mlp, _ADJUSTED: False}


@dataclass(frozen=True)
class ConvolutionLayers:
    """The mixer of each layer, and the tokens that a convolution is a sum over."""

    keys: tuple[str, ...] = ("layer_types", "full_attn_idxs", "conv_L_cache")

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        types = layer_types(hf_config, layers, _by_indices, (_CONVOLUTION, GLOBAL))
        embed, heads = hf_config.integer("hidden_size"), hf_config.integer("num_attention_heads")
        taps = hf_config.integer("conv_L_cache", 3)
        if _CONVOLUTION not in types:
            return [{}] * layers
        if embed % heads:
            raise hf_config.refusal("hidden_size", embed, f"a multiple of the heads, {heads}, which channels are in")
        if taps < 2:
            raise hf_config.refusal("conv_L_cache", taps, "at least 2")
        sizes = LinearAttentionConfig(value_dim=embed // heads, taps=taps)
        mixers = {_CONVOLUTION: "short_conv", GLOBAL: "attention"}
        return [{"mixer": mixers[one], "linear_attention": sizes} for one in types]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        convolve = [model.mixer == "short_conv" for model in models]
        taps = next((sizes_of(model).taps for model in models if model.mixer == "short_conv"), 3)
        return {"layer_types": [_CONVOLUTION if one else GLOBAL for one in convolve], "conv_L_cache": taps}


@dataclass(frozen=True)
class ExpertsBehindDense:
    """Experts of a router of sigmoids in all layers but the first `num_dense_layers`."""

    keys: tuple[str, ...] = (
        "num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_dense_layers", "routed_scaling_factor",
    )  # fmt: skip

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        count, per_token = hf_config.integer("num_experts", 32), hf_config.integer("num_experts_per_tok", 4)
        if per_token > count:
            raise hf_config.refusal("num_experts_per_tok", per_token, f"at most {count} experts")
        scale = hf_config.positive("routed_scaling_factor", 1.0)
        options: dict[str, object] = {"epsilon": EPSILON, **({} if scale == 1 else {"scale": float(scale)})}
        width = hf_config.integer("moe_intermediate_size", 1792)
        experts = ExpertsConfig(count, per_token, width, router="sigmoid", router_options=options)
        dense = hf_config.get("num_dense_layers", 2)
        if type(dense) is not int or not 0 <= dense <= layers:
            raise hf_config.refusal("num_dense_layers", dense, f"a whole number from 0 to {layers}")
        return [{"experts": None if layer < dense else experts} for layer in range(layers)]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        routed = [model.experts is not None for model in models]
        written: dict[str, object] = {"num_dense_layers": routed.index(True) if True in routed else len(routed)}
        model = next((one for one in models if one.experts is not None), None)
        if model is None or model.experts is None or model.experts.router != "sigmoid":
            return written
        return written | {
            "num_experts": model.experts.count, "num_experts_per_tok": model.experts.per_token,
            "moe_intermediate_size": model.mlp if model.experts.width is None else model.experts.width,
            "routed_scaling_factor": options_of(model.experts).scale,
        }  # fmt: skip


def _by_indices(hf_config: HFConfig, layers: int) -> list[str]:
    """The layers of `full_attn_idxs` attend; without it, all do."""
    indices = hf_config.get("full_attn_idxs")
    indices = list(range(layers)) if indices is None else indices
    if not isinstance(indices, list) or any(type(one) is not int for one in indices):
        raise hf_config.refusal("full_attn_idxs", indices, "a list of numbers of layers")
    return [GLOBAL if layer in indices else _CONVOLUTION for layer in range(layers)]


_LAYER = "model.layers.{layer}"
_MIXERS = (
    *(
        Tensor(f"{_LAYER}.self_attn.{theirs}.weight", f"layers.attention.{ours}", form)
        for theirs, ours, form in (
            ("q_proj", "query", Form.LINEAR), ("k_proj", "key", Form.LINEAR), ("v_proj", "value", Form.LINEAR),
            ("out_proj", "output", Form.LINEAR), ("q_layernorm", "query_norm", Form.VECTOR),
            ("k_layernorm", "key_norm", Form.VECTOR),
        )
    ),
    Tensor(f"{_LAYER}.conv.conv.weight", "layers.mixer.taps", Form.TAPS),
    Tensor(f"{_LAYER}.conv.in_proj.weight", "layers.mixer.entry layers.mixer.gate layers.mixer.value"),
    Tensor(f"{_LAYER}.conv.out_proj.weight", "layers.mixer.output"),
)  # fmt: skip
_MATRICES = (("w1", "gate"), ("w2", "down"), ("w3", "up"))
_FEED_FORWARD = tuple(
    Tensor(f"{_LAYER}.feed_forward.{theirs}.weight", f"layers.mlp.{ours}") for theirs, ours in _MATRICES
)
_EXPERTS = (
    Tensor(f"{_LAYER}.feed_forward.expert_bias", "layers.mlp.bias", Form.VECTOR),
    *(
        Tensor(f"{_LAYER}.feed_forward.experts.{{expert}}.{theirs}.weight", f"layers.mlp.{ours}")
        for theirs, ours in _MATRICES
    ),
    Tensor(f"{_LAYER}.feed_forward.gate.weight", "layers.mlp.router"),
)
_NORMS = (
    *(
        Tensor(f"{_LAYER}.operator_norm.weight", f"layers.{mixer}_norm.scale", Form.VECTOR)
        for mixer in ("attention", "mixer")
    ),
    Tensor(f"{_LAYER}.ffn_norm.weight", "layers.mlp_norm.scale", Form.VECTOR),
)
_SIZES = tuple(one for one in GROUPED_SIZES if one.ours != "mlp")

_FINAL = (Tensor("model.embedding_norm.weight", "final_norm.scale", Form.VECTOR), HEAD)
_MODEL = {"norm": "rmsnorm", "activation": "swiglu", "qk_norm": True}
_ENTRIES = (
    *_SIZES,
    HEAD_DIM,
    Same("norm_eps", "norm_epsilon", default=1e-5),
    Only("conv_bias", (False,)),
    Same("tie_word_embeddings", "tied", default=True, also=("tie_embedding",)),
)
_LAYER_ENTRIES = (Rope(base=1000000.0), ConvolutionLayers())
_UNUSED = (
    "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu",
    "block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "use_pos_enc", "theta",
)  # fmt: skip

LFM2 = Family(
    name="lfm2",
    model_type="lfm2",
    architecture="Lfm2ForCausalLM",
    presets="LFM2 350M, 700M, 1.2B and 2.6B",
    tensors=(EMBEDDING, *_MIXERS, *_FEED_FORWARD, *_NORMS, *_FINAL),
    model=_MODEL,
    entries=(*_ENTRIES, AdjustedWidth()),
    layer_entries=_LAYER_ENTRIES,
    unused=_UNUSED,
)
LFM2_MOE = Family(
    name="lfm2_moe",
    model_type="lfm2_moe",
    architecture="Lfm2MoeForCausalLM",
    presets="LFM2 8B-A1B",
    tensors=(EMBEDDING, *_MIXERS, *_FEED_FORWARD, *_EXPERTS, *_NORMS, *_FINAL),
    model=_MODEL,
    entries=(
        *_ENTRIES,
        Same("intermediate_size", "mlp"),
        Only("use_expert_bias", (True,)),
        Only("norm_topk_prob", (True,)),
    ),
    layer_entries=(*_LAYER_ENTRIES, ExpertsBehindDense()),
    unused=(*_UNUSED, *UNUSED),
)
