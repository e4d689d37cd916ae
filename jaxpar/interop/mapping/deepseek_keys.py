"""The lines of DeepSeek's tables about `config.json`: latent attention, and experts behind some dense layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.config.counting import head_dim
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.mapping.keys import REQUIRED, HFConfig
from jaxpar.layers.experts.routers import options_of

_WIDTHS = {
    "kv_lora_rank": "kv_rank", "q_lora_rank": "query_rank", "qk_rope_head_dim": "rope_dim",
    "qk_nope_head_dim": "nope_dim", "v_head_dim": "value_dim",
}  # fmt: skip


@dataclass(frozen=True)
class LatentWidths:
    """The widths of latent attention, and what follows from them."""

    norm_epsilon: float | None = None
    """The epsilon of the norms of latent vectors, where it is another than the model's."""
    unread: tuple[str, ...] = ()
    """Keys among those that follow which the family does not read."""
    rotary_head: bool = True
    """Whether `head_dim` is the width of the part that rotates; else it is that of the head."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (*_WIDTHS, "num_key_value_heads", "head_dim", "qk_head_dim")

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        widths = {
            ours: hf_config.integer(theirs)
            for theirs, ours in _WIDTHS.items()
            if theirs != "q_lora_rank" or hf_config.get(theirs, REQUIRED) is not None
        }
        heads, width = hf_config.get("num_attention_heads"), widths["rope_dim"] + widths["nope_dim"]
        for key, expected in (
            ("num_key_value_heads", heads),
            ("head_dim", widths["rope_dim"] if self.rotary_head else width),
            ("qk_head_dim", width),
        ):
            if key not in self.unread and (value := hf_config.get(key)) not in (None, expected):
                raise hf_config.refusal(key, value, str(expected))
        return {"latent_attention": LatentAttentionConfig(**widths, norm_epsilon=self.norm_epsilon)}

    def write(self, model: ModelConfig) -> dict[str, object]:
        latent = model.latent_attention
        if latent is None:  # another family's; the comparison of what was written reports it
            return {}
        widths: dict[str, object] = {theirs: getattr(latent, ours) for theirs, ours in _WIDTHS.items()}
        return widths | {
            "num_key_value_heads": model.heads, "qk_head_dim": head_dim(model),
            "head_dim": latent.rope_dim if self.rotary_head else head_dim(model),
        }  # fmt: skip


_COUNT = ("n_routed_experts", "num_experts", "num_local_experts")
"""Spellings of the number of experts; the first one is written."""


@dataclass(frozen=True)
class DeepSeekExperts:
    """Experts in all layers but the first `first_k_dense_replace`."""

    router: str
    """Ours: `softmax_top_k` (V2) or `sigmoid` (V3)."""
    scores: tuple[str, ...] = ()
    """Spellings of the score function, the first one written; none are those of DeepSeek."""
    dense: bool = True
    """Whether the first layers may be dense; else their number is 0, and its key may be absent."""

    @property
    def normalised(self) -> bool:
        """Whether the weights of a token's experts add up to `routed_scaling_factor`."""
        return self.router == "sigmoid"

    @property
    def keys(self) -> tuple[str, ...]:
        return (
            "first_k_dense_replace", "moe_layer_freq", *_COUNT, "num_experts_per_tok", "n_shared_experts",
            "moe_intermediate_size", "n_group", "topk_group", "topk_method", "scoring_func", "norm_topk_prob",
            "routed_scaling_factor",
        )  # fmt: skip

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        absent = REQUIRED if self.normalised else None  # DeepSeek's code and transformers have other defaults for V3
        scale = hf_config.positive("routed_scaling_factor", absent or 1.0)
        if hf_config.flag("norm_topk_prob", default=self.normalised) != self.normalised:
            raise hf_config.refusal("norm_topk_prob", not self.normalised, str(self.normalised).lower())
        for key, values in (("scoring_func", self._scores), ("moe_layer_freq", (1,)), ("topk_method", self._methods)):
            if (value := hf_config.get(key)) is not None and value not in values:
                raise hf_config.refusal(key, value, " or ".join(map(str, values)))
        count, shared = hf_config.integer(hf_config.agreed(*_COUNT)), hf_config.get("n_shared_experts", REQUIRED)
        if type(shared) is not int or shared < 0:
            raise hf_config.refusal("n_shared_experts", shared, "a whole number, 0 or more")
        options = self._groups(hf_config) | ({"scale": float(scale)} if scale != 1 else {})
        experts = ExpertsConfig(
            count=count, per_token=hf_config.integer("num_experts_per_tok"),
            width=hf_config.integer("moe_intermediate_size"), shared=shared, router=self.router,
            router_options=options,
        )  # fmt: skip
        first, most = hf_config.get("first_k_dense_replace", (absent or 0) if self.dense else 0), layers - 1
        if type(first) is not int or not 0 <= first <= (most if self.dense else 0):
            raise hf_config.refusal(
                "first_k_dense_replace", first, f"a whole number from 0 to {most}" if self.dense else "0"
            )
        return [{"experts": None if layer < first else experts} for layer in range(layers)]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        dense = [model.experts is None for model in models]
        model = next((one for one in models if one.experts is not None), models[0])
        experts = model.experts or ExpertsConfig(0, router=self.router)
        options = options_of(experts)
        groups = getattr(options, "groups", None)  # another router's options may lack them
        method: dict[str, object] = {"topk_method": "noaux_tc"}
        if not self.normalised:
            method = {"topk_method": "greedy" if groups is None else "group_limited_greedy"}
        return method | {
            "first_k_dense_replace": dense.index(False) if False in dense else len(dense),
            "moe_layer_freq": 1,
            "n_routed_experts": experts.count,
            "num_experts_per_tok": experts.per_token,
            "n_shared_experts": experts.shared,
            "moe_intermediate_size": model.mlp if experts.width is None else experts.width,
            "n_group": groups or 1,
            "topk_group": getattr(options, "groups_per_token", None) or 1,
            "scoring_func": self._scores[0],
            "norm_topk_prob": self.normalised,
            "routed_scaling_factor": getattr(options, "scale", 1.0),
        }

    @property
    def _scores(self) -> tuple[str, ...]:
        return self.scores or ("sigmoid" if self.normalised else "softmax",)

    @property
    def _methods(self) -> tuple[str, ...]:
        return ("noaux_tc",) if self.normalised else ("greedy", "group_limited_greedy")

    def _groups(self, hf_config: HFConfig) -> dict[str, object]:
        """Groups, and those of a token; none where a token may use any."""
        method, absent = hf_config.get("topk_method") or self._methods[0], REQUIRED if self.normalised else None
        if method == "greedy" or hf_config.get("n_group", absent) in (None, 1):
            return {}
        groups, some = hf_config.integer("n_group"), hf_config.integer("topk_group")
        return {} if groups == some else {"groups": groups, "groups_per_token": some}
