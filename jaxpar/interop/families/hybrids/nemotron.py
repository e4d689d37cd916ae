"""Nemotron-H: layers of one block each, Mamba-2, attention without positions, a feed-forward or experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import HEAD, TIED
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.layer_keys import GLOBAL, LINEAR
from jaxpar.interop.mapping.linear_keys import LinearSizes, NoStepLimit, mamba2_tensors
from jaxpar.layers.experts.routers import options_of

_DENSE, _ROUTED = "mlp", "moe"
_LETTERS = {"M": LINEAR, "*": GLOBAL, "-": _DENSE, "E": _ROUTED}
"""Letters of `hybrid_override_pattern`, which earlier releases write, and names in `layers_block_type`."""
_NAMES = {"mamba": LINEAR, "attention": GLOBAL} | {one: one for one in _LETTERS.values()}
_BLOCKS: dict[str, dict[str, object]] = {
    LINEAR: {"mixer": "mamba2", "activation": "none"},
    GLOBAL: {"mixer": "attention", "activation": "none"},
    _DENSE: {"mixer": "none", "activation": "relu2"},
    _ROUTED: {"mixer": "none", "activation": "relu2"},
}
_TYPES, _PATTERN = "layers_block_type", "hybrid_override_pattern"


def _types(hf_config: HFConfig) -> list[str]:
    """The type of each layer."""
    named, pattern = hf_config.get(_TYPES), hf_config.get(_PATTERN)
    key, known, types = (_PATTERN, _LETTERS, pattern) if named is None else (_TYPES, _NAMES, named)
    if not isinstance(types, list | str) or not types:
        raise hf_config.refusal(key, types, "the type of each layer")
    for one in types:
        if one not in known:
            raise hf_config.refusal(key, one, f"one of {', '.join(known)}")
    return [known[one] for one in types]


@dataclass(frozen=True)
class LayerCount:
    """The number of layers, that of their types."""

    keys: tuple[str, ...] = ("num_hidden_layers",)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        return {"layers": len(_types(hf_config))}

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {}


@dataclass(frozen=True)
class BlockTypes:
    """The type of each layer, and the experts of those that have some."""

    keys: tuple[str, ...] = (
        _TYPES, _PATTERN, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
        "moe_shared_expert_intermediate_size", "routed_scaling_factor", "n_group", "topk_group",
    )  # fmt: skip

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        types = _types(hf_config)
        experts = self._experts(hf_config) if _ROUTED in types else None
        return [_BLOCKS[one] | {"experts": experts if one == _ROUTED else None} for one in types]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        written: dict[str, object] = {_TYPES: [_type_of(model) for model in models]}
        model = next((one for one in models if one.experts is not None), None)
        if model is None or model.experts is None or model.experts.router != "sigmoid":
            return written
        experts, options = model.experts, options_of(model.experts)
        width = model.mlp if experts.width is None else experts.width
        return written | {
            "n_routed_experts": experts.count, "num_experts_per_tok": experts.per_token,
            "moe_intermediate_size": width, "moe_shared_expert_intermediate_size": experts.shared * width,
            "routed_scaling_factor": options.scale, "n_group": options.groups or 1,
            "topk_group": options.groups_per_token or 1,
        }  # fmt: skip

    def _experts(self, hf_config: HFConfig) -> ExpertsConfig:
        width, key = hf_config.integer("moe_intermediate_size", 7688), "moe_shared_expert_intermediate_size"
        shared, scale = hf_config.integer(key, 7688), hf_config.positive("routed_scaling_factor", 1.0)
        if shared % width:
            raise hf_config.refusal(key, shared, f"a multiple of moe_intermediate_size, {width}")
        groups, some = hf_config.integer("n_group", 1), hf_config.integer("topk_group", 1)
        options: dict[str, object] = {} if scale == 1 else {"scale": float(scale)}
        if groups != some:
            options |= {"groups": groups, "groups_per_token": some}
        count, chosen = hf_config.integer("n_routed_experts", 8), hf_config.integer("num_experts_per_tok", 2)
        return ExpertsConfig(count, chosen, width, shared // width, router="sigmoid", router_options=options)


def _type_of(model: ModelConfig) -> str:
    """The type of a layer; of one that the family lacks, one that is nearest, which the comparison reports."""
    if model.mixer != "none":
        return LINEAR if model.mixer == "mamba2" else GLOBAL
    return _DENSE if model.experts is None else _ROUTED


_MIXER = "backbone.layers.{layer}.mixer"
_FEED_FORWARD = (("up_proj", "up"), ("down_proj", "down"))
_ATTENTION = (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("o_proj", "output"))

NEMOTRON_H = Family(
    name="nemotron_h",
    model_type="nemotron_h",
    architecture="NemotronHForCausalLM",
    presets="Nemotron-H, Nemotron Nano 2 and Nemotron 3 Nano",
    tensors=(
        Tensor("backbone.embeddings.weight", "embedding.tokens", Form.TABLE),
        *mamba2_tensors(_MIXER),
        *(Tensor(f"{_MIXER}.{theirs}.weight", f"layers.attention.{ours}") for theirs, ours in _ATTENTION),
        *(Tensor(f"{_MIXER}.{theirs}.weight", f"layers.mlp.{ours}") for theirs, ours in _FEED_FORWARD),
        Tensor(f"{_MIXER}.gate.weight", "layers.mlp.router"),
        Tensor(f"{_MIXER}.gate.e_score_correction_bias", "layers.mlp.bias", Form.VECTOR),
        *(Tensor(f"{_MIXER}.experts.{{expert}}.{one}.weight", f"layers.mlp.{ours}") for one, ours in _FEED_FORWARD),
        *(Tensor(f"{_MIXER}.shared_experts.{one}.weight", f"layers.mlp.shared_{ours}") for one, ours in _FEED_FORWARD),
        *(
            Tensor("backbone.layers.{layer}.norm.weight", f"layers.{block}_norm.scale", Form.VECTOR)
            for block in ("mixer", "attention", "mlp")
        ),
        Tensor("backbone.norm_f.weight", "final_norm.scale", Form.VECTOR),
        HEAD,
    ),
    model={"norm": "rmsnorm", "position": "none"},
    entries=(
        Same("vocab_size", "vocab", annotation=int),
        Same("hidden_size", "embed"),
        LayerCount(),
        Same("num_attention_heads", "heads", default=32),
        Same("num_key_value_heads", "kv_heads", default=8),
        Same("head_dim", "head_dim", default=128),
        Same("intermediate_size", "mlp", default=21504),
        Same("layer_norm_epsilon", "norm_epsilon", default=1e-5),
        Only("mlp_hidden_act", ("relu2",)),
        Only("mamba_hidden_act", ("silu", "swish")),
        Only("conv_kernel", (4,)),
        Only("use_conv_bias", (True,)),
        *(Only(key, (False,)) for key in ("use_bias", "mlp_bias", "attention_bias", "mamba_proj_bias")),
        Only("norm_topk_prob", (True,)),
        Only("moe_latent_size", (None,)),
        Only("sliding_window", (None,)),
        NoStepLimit(),
        TIED,
    ),
    layer_entries=(
        BlockTypes(),
        LinearSizes(
            {
                "heads": "mamba_num_heads", "value_dim": "mamba_head_dim", "key_heads": "n_groups",
                "key_dim": "ssm_state_size", "least_step": "time_step_min",
            },
            {"heads": 128, "value_dim": 64, "key_heads": 8, "key_dim": 128, "least_step": 0.001},
        ),
    ),
    unused=(
        "expand", "chunk_size", "time_step_max", "time_step_floor", "residual_in_fp32", "rescale_prenorm_residual",
        "num_logits_to_keep", "use_mamba_kernels", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap",
        "hidden_dropout", "n_shared_experts", "output_router_logits", "mtp_layers_block_type",
        "mtp_hybrid_override_pattern", "num_nextn_predict_layers", "norm_eps",
    ),
    prefix="backbone.",
    omitted=("mtp.",),
)  # fmt: skip
