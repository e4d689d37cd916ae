"""Llama 4's text part: chunked attention with rotary embeddings in most layers, attention without positions and with a
temperature in the others, and experts, whose inputs are weighed, in some layers or all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.config.mappings.attention_temperature import AttentionTemperature
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import EMBEDDING, GROUPED_SIZES, HEAD, NORM, NORMS, SILU, TIED
from jaxpar.interop.mapping.expert_keys import UNUSED
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.layer_keys import GLOBAL, NoRope, layer_types
from jaxpar.interop.mapping.rope_keys import Rope

_CHUNKED, _POSITIONS = "chunked_attention", NoRope()


@dataclass(frozen=True)
class ChunkedLayers:
    """Chunks, norms of queries and keys, and temperatures by layer; the latter two by whether it has positions."""

    keys: tuple[str, ...] = (
        *_POSITIONS.keys, "attention_chunk_size", "layer_types", "use_qk_norm", "attn_temperature_tuning",
        "floor_scale", "attn_scale",
    )  # fmt: skip

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        # An empty list is as none to transformers.
        values = {key: value for key, value in hf_config.values.items() if (key, value) != ("no_rope_layers", [])}
        each = _POSITIONS.read(HFConfig(hf_config.file, values), layers)
        size = hf_config.typed("attention_chunk_size", "chunk", 8192)
        default = lambda hf_config, layers: [
            GLOBAL if size is None or one["position"] == "none" else _CHUNKED for one in each
        ]
        types = layer_types(hf_config, layers, default, (_CHUNKED, GLOBAL))
        if size is None and _CHUNKED in types:
            raise hf_config.refusal("attention_chunk_size", size, f"a number, for layers of {_CHUNKED}")
        normed, tuning = hf_config.flag("use_qk_norm", default=True), hf_config.get("attn_temperature_tuning")
        # Published as 4, of which transformers asks only whether it is 0.
        grows = tuning != 0 if type(tuning) is int else hf_config.flag("attn_temperature_tuning", default=True)
        floor, scale = hf_config.integer("floor_scale", 8192), hf_config.positive("attn_scale", 0.1)
        temperature = AttentionTemperature(floor, float(scale), offset=1) if grows else None

        def layer_keys(position: object, one: str) -> dict[str, object]:
            rotates = position == "rope"
            return {
                "position": position, "chunk": size if one == _CHUNKED else None,
                "qk_norm": "unweighted" if normed and rotates else False,
                "attention_temperature": None if rotates else temperature,
            }  # fmt: skip

        return [layer_keys(one["position"], name) for one, name in zip(each, types, strict=True)]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        grows = next((one for model in models if (one := model.attention_temperature) is not None), None)
        written = {} if grows is None else {"floor_scale": grows.floor, "attn_scale": grows.scale}
        return _POSITIONS.write(models) | written | {
            "attention_chunk_size": next((model.chunk for model in models if model.chunk is not None), None),
            "layer_types": [GLOBAL if model.chunk is None else _CHUNKED for model in models],
            "use_qk_norm": any(model.qk_norm for model in models),
            "attn_temperature_tuning": grows is not None,
        }  # fmt: skip


@dataclass(frozen=True)
class InterleavedExperts:
    """Experts with a shared one in the layers of `moe_layers`, by default every `interleave_moe_layer_step`-th."""

    keys: tuple[str, ...] = (
        "num_local_experts", "num_experts_per_tok", "intermediate_size", "moe_layers", "interleave_moe_layer_step",
    )  # fmt: skip

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        count, per_token = hf_config.integer("num_local_experts", 16), hf_config.integer("num_experts_per_tok", 1)
        if per_token > count:
            raise hf_config.refusal("num_experts_per_tok", per_token, f"at most {count} experts")
        experts = ExpertsConfig(
            count, per_token, hf_config.integer("intermediate_size"), 1, weigh_inputs=True, router="sigmoid_top_k"
        )
        every, named = hf_config.integer("interleave_moe_layer_step", 1), hf_config.get("moe_layers")
        if named is None:
            named = list(range(every - 1, layers, every))
        if not isinstance(named, list) or not all(type(one) is int and 0 <= one < layers for one in named):
            raise hf_config.refusal("moe_layers", named, f"a list of numbers from 0 to {layers - 1}")
        return [{"experts": experts if layer in named else None} for layer in range(layers)]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        model = next((one for one in models if one.experts is not None), models[0])
        experts = model.experts or ExpertsConfig(1, 1)
        return {
            "num_local_experts": experts.count, "num_experts_per_tok": experts.per_token,
            "intermediate_size": model.mlp if experts.width is None else experts.width,
            "moe_layers": [layer for layer, one in enumerate(models) if one.experts is not None],
        }  # fmt: skip


_ATTENTION, _MLP = "model.layers.{layer}.self_attn", "model.layers.{layer}.feed_forward"
_PROJECTIONS = (("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "down"))

LLAMA4 = Family(
    name="llama4",
    model_type="llama4_text",
    architecture="Llama4ForCausalLM",
    presets="Llama 4 Scout and Maverick, without their images",
    tensors=(
        EMBEDDING,
        Tensor(f"{_ATTENTION}.q_proj.weight", "layers.attention.query", rotary=True),
        Tensor(f"{_ATTENTION}.k_proj.weight", "layers.attention.key", rotary=True),
        Tensor(f"{_ATTENTION}.v_proj.weight", "layers.attention.value"),
        Tensor(f"{_ATTENTION}.o_proj.weight", "layers.attention.output"),
        *(Tensor(f"{_MLP}.{theirs}.weight", f"layers.mlp.{ours}") for theirs, ours in _PROJECTIONS),
        Tensor(f"{_MLP}.router.weight", "layers.mlp.router"),
        Tensor(f"{_MLP}.experts.gate_up_proj", "layers.mlp.gate layers.mlp.up", Form.TABLE, all_experts=True),
        Tensor(f"{_MLP}.experts.down_proj", "layers.mlp.down", Form.TABLE, all_experts=True),
        *(
            Tensor(f"{_MLP}.shared_expert.{theirs}.weight", f"layers.mlp.shared_{ours}")
            for theirs, ours in _PROJECTIONS
        ),
        *NORMS,
        NORM,
        HEAD,
    ),
    model={"norm": "rmsnorm", "activation": "swiglu"},
    entries=(
        *(one for one in GROUPED_SIZES if one.ours != "mlp"),
        Same("intermediate_size_mlp", "mlp", default=16384),
        Same("head_dim", "head_dim", default=128),
        SILU,
        Same("rms_norm_eps", "norm_epsilon", default=1e-5),
        Only("attention_bias", (False,)),
        TIED,
    ),
    layer_entries=(
        Rope(base=500000.0, scalings=("default", "linear", "llama3")),
        ChunkedLayers(),
        InterleavedExperts(),
    ),
    unused=(*UNUSED, "router_jitter_noise", "for_llm_compressor"),
)
