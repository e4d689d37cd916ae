"""The lines of a family's table about experts: tensors, which layers have them, how many, and weights of a router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.mapping.family import Tensor
from jaxpar.interop.mapping.keys import HFConfig

EXPERTS = (
    Tensor("model.layers.{layer}.mlp.gate.weight", "layers.mlp.router"),
    Tensor("model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight", "layers.mlp.gate"),
    Tensor("model.layers.{layer}.mlp.experts.{expert}.up_proj.weight", "layers.mlp.up"),
    Tensor("model.layers.{layer}.mlp.experts.{expert}.down_proj.weight", "layers.mlp.down"),
)
"""A router and experts with tensors of their own, as most families have them."""

NORMALISED, PLAIN = "top_k_softmax", "softmax_top_k"
"""Routers of a softmax: with weights that add up to 1 or, for `norm_topk_prob: false`, as they are."""
SAME = {"gshard": NORMALISED, "switch": PLAIN}
"""Routers that differ from another in training alone."""
UNUSED = ("output_router_logits", "router_aux_loss_coef")
"""Keys of losses, which have other weights here."""


@dataclass(frozen=True)
class RoutedExperts:
    """Experts with a router of a softmax, or one that is the same in all models of the family."""

    count: tuple[str, ...]
    """Spellings of the number of experts; the first one is written, as is that of `per_token`."""
    per_token: tuple[str, ...] = ("num_experts_per_tok",)
    width: str | None = None
    """The key of an expert's width; without one it is that of a feed-forward."""
    normalised: str | None = None
    """The key for whether the weights of a token are divided by their sum; without one they are."""
    absent: bool = False
    """Whether they are where `config.json` lacks that key."""
    shared: str | None = None
    """The key of the width of a shared expert, whose output a sigmoid of each token weighs."""
    router: str = NORMALISED
    """Ours, unless the weights of a token are as they are."""
    dense: bool = False
    """Whether layers may have none: those of `mlp_only_layers`, and all but each `decoder_sparse_step`-th."""

    @property
    def keys(self) -> tuple[str, ...]:
        more = [key for key in (self.width, self.normalised, self.shared) if key is not None]
        return (*self.count, *self.per_token, *more, *(_DENSE if self.dense else ()))

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        count, per_token = (hf_config.integer(hf_config.agreed(*keys)) for keys in (self.count, self.per_token))
        if per_token > count:
            raise hf_config.refusal(hf_config.agreed(*self.per_token), per_token, f"at most {count} experts")
        router = self.router
        if self.normalised is not None and not hf_config.flag(self.normalised, default=self.absent):
            router = PLAIN
        width = None if self.width is None else hf_config.integer(self.width)
        shared = self._shared(hf_config, width)
        experts = ExpertsConfig(count, per_token, width, shared, shared_router=shared > 0, router=router)
        dense = self._dense_layers(hf_config, layers)
        return [{"experts": None if layer in dense else experts} for layer in range(layers)]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        model = next((one for one in models if one.experts is not None), models[0])
        experts = model.experts or ExpertsConfig(0)
        written: dict[str, object] = {self.count[0]: experts.count, self.per_token[0]: experts.per_token}
        if self.width is not None:
            written[self.width] = model.mlp if experts.width is None else experts.width
        if self.shared is not None:
            written[self.shared] = experts.shared * (model.mlp if experts.width is None else experts.width)
        if self.normalised is not None:
            written[self.normalised] = SAME.get(experts.router, experts.router) == NORMALISED
        if self.dense:
            written["mlp_only_layers"] = [layer for layer, one in enumerate(models) if one.experts is None]
            written["decoder_sparse_step"] = 1
        return written

    def _shared(self, hf_config: HFConfig, width: int | None) -> int:
        """The width of the shared expert as a multiple of that of another."""
        if self.shared is None:
            return 0
        shared, width = hf_config.integer(self.shared), width or 1
        if shared % width:
            raise hf_config.refusal(self.shared, shared, f"a multiple of {self.width}, {width}")
        return shared // width

    def _dense_layers(self, hf_config: HFConfig, layers: int) -> set[int]:
        if not self.dense:
            return set()
        step, named = hf_config.integer("decoder_sparse_step", 1), hf_config.get("mlp_only_layers") or []
        if not isinstance(named, list) or not all(type(one) is int and 0 <= one < layers for one in named):
            raise hf_config.refusal("mlp_only_layers", named, f"a list of numbers from 0 to {layers - 1}")
        dense = {*named, *(layer for layer in range(layers) if (layer + 1) % step)}
        if len(dense) == layers:
            raise hf_config.refusal("mlp_only_layers", named, "at least one layer with experts")
        return dense


_DENSE = ("mlp_only_layers", "decoder_sparse_step")
