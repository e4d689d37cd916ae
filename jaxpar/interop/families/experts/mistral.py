"""Mistral 4: latent attention whose queries grow with the position, and experts of a softmax in groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.deepseek import DEEPSEEK_V2
from jaxpar.interop.families.llama import GROUPED_SIZES, NORM_EPSILON, SILU, TIED
from jaxpar.interop.families.mistral import YARN
from jaxpar.interop.mapping.deepseek_keys import DeepSeekExperts, LatentWidths
from jaxpar.interop.mapping.expert_keys import NORMALISED, PLAIN, UNUSED
from jaxpar.interop.mapping.family import EXPERT, Family, Tensor
from jaxpar.interop.mapping.keys import HFConfig, Only
from jaxpar.interop.mapping.rope_keys import Rope

_EXPERTS = "model.layers.{layer}.mlp.experts"
_BEST = 2
"""The number of experts whose probabilities rank a group."""


@dataclass(frozen=True)
class SoftmaxExperts(DeepSeekExperts):
    """DeepSeek's experts, with probabilities for weights, which a key says are divided by their sum."""

    router: str = "sigmoid"

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for key in super().keys if key not in ("moe_layer_freq", "topk_method", "scoring_func"))

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        router = NORMALISED if hf_config.flag("norm_topk_prob", default=True) else PLAIN
        read = super().read(HFConfig(hf_config.file, {**hf_config.values, "norm_topk_prob": True}), layers)
        return [{"experts": _by_softmax(one["experts"], router)} for one in read]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        written = {key: value for key, value in super().write(models).items() if key in self.keys}
        routers = {model.experts.router for model in models if model.experts is not None}
        return written | {"norm_topk_prob": PLAIN not in routers}


@dataclass(frozen=True)
class RopeOfLatents(Rope):
    """Rotary embeddings of latent attention, whose share of a head its widths say a second time."""

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        rotary, still = (hf_config.integer(f"qk_{part}_head_dim") for part in ("rope", "nope"))
        share = rotary / (rotary + still)
        (first, *_) = Rope.read(replace(self, partial=share), hf_config, layers)
        rope = first["rope"]
        assert isinstance(rope, dict)
        if (stated := rope.pop("partial")) != share:
            raise hf_config.refusal("partial_rotary_factor", stated, f"{share}, by the widths of heads")
        return [{**first, "rope": rope}] * layers

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        written, latent = super().write(models), models[0].latent_attention
        scaling = written["rope_scaling"]
        if latent is not None and isinstance(scaling, dict):  # transformers does not derive it where `rope_scaling` is
            share = latent.rope_dim / (latent.rope_dim + latent.nope_dim)
            written["rope_scaling"] = scaling | {"partial_rotary_factor": share}
        return written


def _by_softmax(experts: object, router: str) -> ExpertsConfig | None:
    if not isinstance(experts, ExpertsConfig):
        return None
    best = {"group_best": _BEST} if "groups" in experts.router_options else {}
    return replace(experts, router=router, router_options={**experts.router_options, **best})


_YARN = YARN | {"rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192}
"""The rotary embeddings of a model that states none."""

MISTRAL4 = Family(
    name="mistral4",
    model_type="mistral4",
    architecture="Mistral4ForCausalLM",
    presets="Mistral Small 4 without its images",
    tensors=(
        *(line for line in DEEPSEEK_V2.tensors if EXPERT not in line.name),
        Tensor(f"{_EXPERTS}.gate_up_proj", "layers.mlp.gate layers.mlp.up", all_experts=True),
        Tensor(f"{_EXPERTS}.down_proj", "layers.mlp.down", all_experts=True),
    ),
    model={"norm": "rmsnorm", "activation": "swiglu"},
    entries=(
        *(entry for entry in GROUPED_SIZES if "num_key_value_heads" not in entry.keys),
        # transformers has this one for norms of latent vectors, whatever the configuration names.
        LatentWidths(norm_epsilon=1e-6, rotary_head=False),
        SILU,
        NORM_EPSILON,
        Only("attention_bias", (False,)),
        Only("rope_interleave", (True,)),
        TIED,
    ),
    layer_entries=(
        RopeOfLatents(
            scalings=("yarn",), unused=("max_position_embeddings",), absent=_YARN, temperature="llama_4_scaling_beta"
        ),
        SoftmaxExperts(),
    ),
    unused=(*UNUSED, "pretraining_tp"),
)
