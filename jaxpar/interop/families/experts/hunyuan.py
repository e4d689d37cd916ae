"""Hunyuan: norms of queries and keys behind the rotation; dense, and with experts in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import (
    ATTENTION,
    ATTENTION_BIAS,
    EMBEDDING,
    FEED_FORWARD,
    HEAD,
    HEAD_DIM,
    NORM,
    NORMS,
    SILU,
    SIZES,
    TIED,
)
from jaxpar.interop.mapping.expert_keys import EXPERTS, UNUSED
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.rope_keys import Rope

_LAYER = "model.layers.{layer}"
_NORMS = (
    Tensor(f"{_LAYER}.self_attn.query_layernorm.weight", "layers.attention.query_norm", Form.VECTOR),
    Tensor(f"{_LAYER}.self_attn.key_layernorm.weight", "layers.attention.key_norm", Form.VECTOR),
)
MOST = 1e9
"""The largest stretch of a base that is read."""


@dataclass(frozen=True)
class StretchedRope(Rope):
    """Rotary embeddings whose base a fixed `alpha` stretches (NTK-aware), which files name `dynamic`; it is read as the
    base that results."""

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        values = dict(hf_config.values)
        for key in ("rope_scaling", "rope_parameters"):
            scaling = values.get(key)
            if isinstance(scaling, dict) and scaling.get("alpha"):
                base = self._stretched(hf_config, key, scaling)
                values |= {key: {"rope_type": "default", "rope_theta": base}, "rope_theta": base}
        return super().read(HFConfig(hf_config.file, values), layers)

    def _stretched(self, hf_config: HFConfig, key: str, scaling: dict[str, object]) -> float:
        spellings = {f"{key}.{name}": scaling.get(name) for name in ("rope_type", "type")}
        spelling, kind = hf_config.agreed_of(spellings) or (f"{key}.rope_type", None)
        if kind != "dynamic":
            raise hf_config.refusal(spelling, kind, f"dynamic with {key}.alpha")
        inside = HFConfig(hf_config.file, {f"{key}.{name}": value for name, value in scaling.items()})
        alpha = inside.positive(f"{key}.alpha", None)
        theta = {"rope_theta": hf_config.get("rope_theta"), f"{key}.rope_theta": scaling.get("rope_theta")}
        base = hf_config.checked_value(*(hf_config.agreed_of(theta) or ("rope_theta", self.base)), "rope.base")
        width = hf_config.get("head_dim")
        if width is None:
            width = hf_config.integer("hidden_size") // hf_config.integer("num_attention_heads")
        if type(width) is not int or width < 3:
            raise hf_config.refusal("head_dim", width, f"at least 3 with {key}.alpha")
        if alpha > MOST:
            raise hf_config.refusal(f"{key}.alpha", alpha, f"at most {MOST:g}")
        return base * alpha ** (width / (width - 2))


_MODEL = {"norm": "rmsnorm", "activation": "swiglu", "qk_norm": "rotated"}
_ENTRIES = (
    *SIZES,
    HEAD_DIM,
    SILU,
    Same("rms_norm_eps", "norm_epsilon", default=1e-5),
    ATTENTION_BIAS,
    TIED,
    Only("use_qk_norm", (True,)),
    Only("use_rotary_pos_emb", (True,)),
    Only("use_cla", (False,)),
    Only("mlp_bias", (False,)),
    Only("norm_type", ("rms",)),
)
_UNUSED = (
    "add_classification_head", "attention_head_dim", "cla_share_factor", "class_num", "dense_list", "eod_token_id",
    "im_end_id", "im_newline_id", "im_start_id", "mask_init_id", "org_vocab_size", "pad_id", "pool_type",
    "sep_token_id", "text_end_id", "text_start_id",
)  # fmt: skip

HUNYUAN_V1_DENSE = Family(
    name="hunyuan_v1_dense",
    model_type="hunyuan_v1_dense",
    architecture="HunYuanDenseV1ForCausalLM",
    presets="Hunyuan 0.5B to 7B, dense ones",
    tensors=(EMBEDDING, *ATTENTION, *_NORMS, *FEED_FORWARD, *NORMS, NORM, HEAD),
    model=_MODEL,
    entries=_ENTRIES,
    layer_entries=(StretchedRope(),),
    unused=_UNUSED,
)

_COUNT, _CHOSEN = ("num_experts", "num_local_experts"), ("moe_topk", "num_experts_per_tok")
_SHARED, _WIDTH = "num_shared_expert", "moe_intermediate_size"


@dataclass(frozen=True)
class HunyuanExperts:
    """Experts of the width of a feed-forward, and one for all tokens; some keys may have a value for each layer."""

    count: tuple[str, ...] = _COUNT

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.count, *_CHOSEN, _SHARED, _WIDTH, "intermediate_size")

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        width, chosen = hf_config.integer("intermediate_size"), hf_config.agreed(*_CHOSEN)
        count = hf_config.integer(hf_config.agreed(*self.count), 1)
        for key, wanted in ((_SHARED, 1), (_WIDTH, width)):
            if set(_per_layer(hf_config, key, wanted, layers)) != {wanted}:
                raise hf_config.refusal(key, hf_config.get(key), f"{wanted} in every layer")
        each = _per_layer(hf_config, chosen, 1, layers)
        if max(each) > count:
            raise hf_config.refusal(chosen, max(each), f"at most {count} experts")
        return [{"experts": ExpertsConfig(count, one, shared=1)} for one in each]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        each = [model.experts or ExpertsConfig(0) for model in models]
        width, chosen = each[0].width, [experts.per_token for experts in each]
        return {
            _COUNT[0]: each[0].count, _CHOSEN[0]: chosen if len({*chosen}) > 1 else chosen[0], _SHARED: 1,
            "intermediate_size": models[0].mlp if width is None else width,
        }  # fmt: skip


def _per_layer(hf_config: HFConfig, key: str, default: int, layers: int) -> list[int]:
    """The value of a key for each layer."""
    value = hf_config.get(key, default)
    stated = value[:layers] if isinstance(value, list) else [value] * layers
    each = [one for one in stated if type(one) is int and one >= 1]
    if not len(each) == len(stated) == layers:
        raise hf_config.refusal(key, value, f"a whole number, at least 1, or {layers} of them")
    return each


HUNYUAN_V1_MOE = Family(
    name="hunyuan_v1_moe",
    model_type="hunyuan_v1_moe",
    architecture="HunYuanMoEV1ForCausalLM",
    presets="Hunyuan-A13B",
    tensors=(
        EMBEDDING,
        *ATTENTION,
        *_NORMS,
        Tensor(f"{_LAYER}.mlp.gate.wg.weight", "layers.mlp.router"),
        *EXPERTS[1:],
        *(
            Tensor(f"{_LAYER}.mlp.shared_mlp.{name}_proj.weight", f"layers.mlp.shared_{name}")
            for name in ("gate", "up", "down")
        ),
        *NORMS,
        NORM,
        HEAD,
    ),
    model=_MODEL,
    entries=(
        *_ENTRIES,
        *(Only(key, (True,)) for key in ("use_mixed_mlp_moe", "norm_topk_prob")),
        *(Only(key, (False,)) for key in ("use_mla", "group_limited_greedy", "position_embedding_xdrope")),
    ),
    layer_entries=(StretchedRope(), HunyuanExperts()),
    unused=(
        *UNUSED, *_UNUSED, "moe_drop_tokens", "moe_layer_num_skipped", "moe_random_routing_dropped_token",
        "n_group", "topk_group", "routed_scaling_factor", "kv_lora_rank", "q_lora_rank",
        "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    ),
)  # fmt: skip
