"""Kimi Linear: Kimi delta attention, latent attention without positions in every fourth layer, and experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import EMBEDDING, HEAD, NORM, NORMS, SILU, TIED
from jaxpar.interop.mapping.deepseek_keys import LatentWidths
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.layer_keys import GLOBAL, LINEAR, layer_types
from jaxpar.interop.mapping.linear_keys import with_state
from jaxpar.layers.experts.routers import options_of
from jaxpar.layers.linear_attention.mixer import sizes_of

_NESTED = "linear_attn_config"
_OLDER = {
    "num_heads": "linear_num_heads",
    "head_dim": "linear_head_dim",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
"""Keys inside `linear_attn_config`, which publishers write, and those of transformers, over which they win."""


def _flat(hf_config: HFConfig) -> HFConfig:
    """The keys of `linear_attn_config` beside the others; its lists of layers, numbered from 1, as `layer_types`."""
    nested = hf_config.get(_NESTED)
    if nested is None:
        return hf_config
    if not isinstance(nested, dict):
        raise hf_config.refusal(_NESTED, nested, "a mapping")
    for key in nested.keys() - {*_OLDER, "full_attn_layers", "kda_layers"}:
        raise hf_config.refusal(f"{_NESTED}.{key}", nested[key], "null")
    values = {**hf_config.values, **{_OLDER[key]: nested[key] for key in _OLDER if key in nested}}
    full, state = nested.get("full_attn_layers"), nested.get("kda_layers")
    if hf_config.get("layer_types") is None and full is not None and state is not None:
        if not isinstance(full, list) or not isinstance(state, list) or not set(full).isdisjoint(state):
            raise hf_config.refusal(f"{_NESTED}.full_attn_layers", full, "other layers than those of kda_layers")
        values["layer_types"] = [GLOBAL if one in full else LINEAR for one in range(1, len(full) + len(state) + 1)]
    return HFConfig(hf_config.file, values)


_LATENT_WIDTHS = LatentWidths(norm_epsilon=1e-6, unread=("head_dim",))


@dataclass(frozen=True)
class KimiMixers:
    """The mixer of each layer, the heads of those with a state, and the widths of latent attention."""

    keys: tuple[str, ...] = ("layer_types", _NESTED, *_OLDER.values(), *_LATENT_WIDTHS.keys)

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        flat = _flat(hf_config)
        if (taps := flat.get("linear_conv_kernel_dim", 4)) != 4:
            raise flat.refusal("linear_conv_kernel_dim", taps, "4")
        width = flat.integer("linear_head_dim", 128)
        sizes = LinearAttentionConfig(flat.integer("linear_num_heads", 32), key_dim=width, value_dim=width)
        default = lambda hf_config, layers: [GLOBAL if one and one % 4 == 0 else LINEAR for one in range(layers)]
        types = layer_types(flat, layers, default, (LINEAR, GLOBAL))
        mixers = {
            LINEAR: {"mixer": "kimi_delta", "latent_attention": None},
            GLOBAL: {"mixer": "attention"} | _LATENT_WIDTHS.read(hf_config),
        }
        return [{"linear_attention": sizes, **mixers[one]} for one in types]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        sizes = sizes_of(next((model for model in models if with_state(model)), models[0]))
        latent = next((model for model in models if model.latent_attention is not None), models[0])
        return _LATENT_WIDTHS.write(latent) | {
            "layer_types": [LINEAR if with_state(model) else GLOBAL for model in models],
            "linear_num_heads": sizes.heads, "linear_head_dim": sizes.key_dim, "linear_conv_kernel_dim": 4,
        }  # fmt: skip


_COUNT, _CHOSEN = ("num_experts", "num_local_experts"), ("num_experts_per_token", "num_experts_per_tok")
_SHARED, _GROUPS = ("num_shared_experts", "n_shared_experts"), ("num_expert_group", "n_group")
_SUM = ("moe_renormalize", "norm_topk_prob")
_TYPES, _FIRST = "mlp_layer_types", "first_k_dense_replace"


@dataclass(frozen=True)
class KimiExperts:
    """Experts of a router of sigmoids, in layers of the type `sparse`."""

    keys: tuple[str, ...] = (
        *_COUNT, *_CHOSEN, *_SHARED, *_GROUPS, *_SUM, _TYPES, _FIRST, "topk_group", "moe_intermediate_size",
        "routed_scaling_factor",
    )  # fmt: skip

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        agreed = hf_config.agreed
        if not hf_config.flag(agreed(*_SUM), default=True):
            raise hf_config.refusal(agreed(*_SUM), False, "true")
        scale = hf_config.positive("routed_scaling_factor", 2.446)
        options: dict[str, object] = {} if scale == 1 else {"scale": float(scale)}
        groups, some = hf_config.integer(agreed(*_GROUPS), 1), hf_config.integer("topk_group", 1)
        if groups != some:
            options |= {"groups": groups, "groups_per_token": some}
        experts = ExpertsConfig(
            hf_config.integer(agreed(*_COUNT), 256), hf_config.integer(agreed(*_CHOSEN), 8),
            hf_config.integer("moe_intermediate_size", 1024), hf_config.integer(agreed(*_SHARED), 1),
            router="sigmoid", router_options=options,
        )  # fmt: skip
        first = hf_config.get(_FIRST, 1)
        types = hf_config.get(_TYPES)
        if types is None:
            types = ["dense" if isinstance(first, int) and layer < first else "sparse" for layer in range(layers)]
        if not isinstance(types, list) or len(types) != layers or not {*types} <= {"dense", "sparse"}:
            raise hf_config.refusal(_TYPES, types, f"a list of {layers}, each dense or sparse")
        return [{"experts": experts if one == "sparse" else None} for one in types]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        written: dict[str, object] = {_TYPES: ["sparse" if model.experts else "dense" for model in models]}
        model = next((one for one in models if one.experts is not None), None)
        if model is None or model.experts is None or model.experts.router != "sigmoid":
            return written
        experts, options = model.experts, options_of(model.experts)
        return written | {
            _COUNT[0]: experts.count, _CHOSEN[0]: experts.per_token, _SHARED[0]: experts.shared, _SUM[0]: True,
            "moe_intermediate_size": model.mlp if experts.width is None else experts.width,
            "routed_scaling_factor": options.scale, _GROUPS[0]: options.groups or 1,
            "topk_group": options.groups_per_token or 1,
        }  # fmt: skip


_ATTENTION, _EXPERTS = "model.layers.{layer}.self_attn", "model.layers.{layer}.block_sparse_moe"
_STATE = (("q", "query"), ("k", "key"), ("v", "value"))
_PRODUCTS = (
    ("f_a", "decay_a"),
    ("f_b", "decay_b"),
    ("g_a", "gate_a"),
    ("g_b", "gate_b"),
    ("b", "rate"),
    ("o", "output"),
)
_LATENT = (
    ("q_proj", "query"), ("q_a_proj", "query_down"), ("q_b_proj", "query_up"), ("kv_a_proj_with_mqa", "kv_down"),
    ("o_proj", "output"),
)  # fmt: skip

KIMI_LINEAR = Family(
    name="kimi_linear",
    model_type="kimi_linear",
    architecture="KimiLinearForCausalLM",
    presets="Kimi Linear 48B-A3B",
    tensors=(
        EMBEDDING,
        Tensor(f"{_ATTENTION}.A_log", "layers.mixer.decay_rate", Form.HEADS),
        Tensor(f"{_ATTENTION}.dt_bias", "layers.mixer.decay_bias", Form.VECTOR),
        *(Tensor(f"{_ATTENTION}.{theirs}_proj.weight", f"layers.mixer.{ours}") for theirs, ours in _STATE + _PRODUCTS),
        *(Tensor(f"{_ATTENTION}.{one}_conv1d.weight", f"layers.mixer.{ours}_taps", Form.TAPS) for one, ours in _STATE),
        Tensor(f"{_ATTENTION}.o_norm.weight", "layers.mixer.output_norm", Form.VECTOR),
        *(Tensor(f"{_ATTENTION}.{theirs}.weight", f"layers.attention.{ours}") for theirs, ours in _LATENT),
        *(
            Tensor(f"{_ATTENTION}.{one}_a_layernorm.weight", f"layers.attention.{ours}_norm", Form.VECTOR)
            for one, ours in (("q", "query"), ("kv", "kv"))
        ),
        Tensor(f"{_ATTENTION}.kv_b_proj.weight", "layers.attention.key_up layers.attention.value_up", by_head=True),
        *(
            Tensor(
                f"model.layers.{{layer}}.mlp.{one}_proj.weight", f"layers.mlp.{one}",
                also=f"{_EXPERTS}.{one}_proj.weight",
            )
            for one in ("gate", "up", "down")
        ),
        Tensor(f"{_EXPERTS}.gate.weight", "layers.mlp.router"),
        Tensor(f"{_EXPERTS}.gate.e_score_correction_bias", "layers.mlp.bias", Form.VECTOR),
        *(
            Tensor(f"{_EXPERTS}.experts.{{expert}}.{theirs}.weight", f"layers.mlp.{ours}")
            for theirs, ours in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
        ),
        *(
            Tensor(f"{_EXPERTS}.shared_experts.{one}_proj.weight", f"layers.mlp.shared_{one}")
            for one in ("gate", "up", "down")
        ),
        *NORMS,
        Tensor("model.layers.{layer}.input_layernorm.weight", "layers.mixer_norm.scale", Form.VECTOR),
        NORM,
        HEAD,
    ),
    model={"norm": "rmsnorm", "activation": "swiglu", "position": "none"},
    entries=(
        Same("vocab_size", "vocab", annotation=int),
        Same("hidden_size", "embed"),
        Same("intermediate_size", "mlp"),
        Same("num_hidden_layers", "layers"),
        Same("num_attention_heads", "heads"),
        SILU,
        Same("rms_norm_eps", "norm_epsilon", default=1e-5),
        Only("attention_bias", (False,)),
        Only("mla_use_nope", (True,)),
        Only("moe_router_activation_func", ("sigmoid",)),
        Only("moe_layer_freq", (1,)),
        TIED,
    ),
    layer_entries=(KimiMixers(), KimiExperts()),
    unused=(
        "model_max_length", "output_router_logits", "rope_theta", "rope_scaling", "use_grouped_topk",
        "num_nextn_predict_layers",
    ),
)  # fmt: skip
