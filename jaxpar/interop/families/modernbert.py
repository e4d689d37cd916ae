"""ModernBERT: bidirectional, with local and global layers, and embeddings whose norm stands for the first layer's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpar.config.schema import ModelConfig
from jaxpar.interop.families.llama import ATTENTION_BIAS
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import HFConfig, Only, Same
from jaxpar.interop.mapping.layer_keys import GLOBAL, LOCAL, layer_types
from jaxpar.interop.mapping.rope_keys import RopeByType

_EVERY = "global_attn_every_n_layers"


def _every_third(hf_config: HFConfig, layers: int) -> list[str]:
    """Types of layers with the window, except the first and every `global_attn_every_n_layers`-th after it."""
    every = hf_config.integer(_EVERY, 3)
    return [LOCAL if layer % every else GLOBAL for layer in range(layers)]


@dataclass(frozen=True)
class _LocalAttention:
    """`local_attention`, both sides of the window together."""

    keys: tuple[str, ...] = ("local_attention", "layer_types", _EVERY)

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        window = hf_config.integer("local_attention", 128) // 2 + 1
        types = layer_types(hf_config, layers, _every_third)
        return [{"window": window if one == LOCAL else None} for one in types]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        window = next((model.window for model in models if model.window is not None), 65)
        types = [GLOBAL if model.window is None else LOCAL for model in models]
        return {"local_attention": 2 * (window - 1), "layer_types": types}


@dataclass(frozen=True)
class _FirstLayer:
    """The norm of the embeddings is that before the first layer's attention, and there is none beside it."""

    keys: tuple[str, ...] = ()

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        return [{"norm_placement": "pre" if layer else "stream_mixer"} for layer in range(layers)]

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        return {}


class _Rope(RopeByType):
    """Bases and scalings by type, written in `rope_parameters`, which has a scaling of local layers too."""

    def read(self, hf_config: HFConfig, layers: int) -> list[dict[str, object]]:
        if scaling := hf_config.get("rope_scaling"):  # transformers applies it to layers of both types
            raise hf_config.refusal("rope_scaling", scaling, "rope_parameters, with a mapping for each type of layer")
        return super().read(hf_config, layers)

    def write(self, models: Sequence[ModelConfig]) -> dict[str, object]:
        return RopeByType(self.types, bases=None).write(models)


MODERNBERT = Family(
    name="modernbert",
    model_type="modernbert",
    architecture="ModernBertForMaskedLM",
    presets="ModernBERT base and large",
    tensors=(
        Tensor("decoder.bias", "final_norm.head_bias", Form.VECTOR),
        Tensor("head.dense.weight", "final_norm.transform.weight"),
        Tensor("head.norm.weight", "final_norm.transform.norm.scale", Form.VECTOR),
        Tensor("model.embeddings.tok_embeddings.weight", "embedding.tokens", Form.TABLE),
        Tensor("model.final_norm.weight", "final_norm.scale", Form.VECTOR),
        Tensor("model.layers.{layer}.attn.Wo.weight", "layers.attention.output"),
        Tensor("model.layers.{layer}.attn.Wo.bias", "layers.attention.output_bias", Form.VECTOR),
        Tensor(
            "model.layers.{layer}.attn.Wqkv.weight",
            "layers.attention.query layers.attention.key layers.attention.value",
        ),
        Tensor(
            "model.layers.{layer}.attn.Wqkv.bias",
            "layers.attention.query_bias layers.attention.key_bias layers.attention.value_bias",
            Form.VECTOR,
        ),
        Tensor(
            "model.layers.{layer}.attn_norm.weight", "layers.attention_norm.scale", Form.VECTOR,
            first="model.embeddings.norm.weight",
        ),
        Tensor("model.layers.{layer}.mlp.Wi.weight", "layers.mlp.gate layers.mlp.up"),
        Tensor("model.layers.{layer}.mlp.Wo.weight", "layers.mlp.down"),
        Tensor("model.layers.{layer}.mlp_norm.weight", "layers.mlp_norm.scale", Form.VECTOR),
        Tensor("decoder.weight", "head.weight"),
    ),
    model={"norm": "unbiased_layernorm", "activation": "exact_geglu", "causal": False, "head_transform": True},
    entries=(
        Same("vocab_size", "vocab", annotation=int),
        Same("hidden_size", "embed"),
        Same("intermediate_size", "mlp"),
        Same("num_hidden_layers", "layers"),
        Same("num_attention_heads", "heads"),
        Same("norm_eps", "norm_epsilon", default=1e-5),
        Same("tie_word_embeddings", "tied", default=True),
        Same("decoder_bias", "head_bias", default=True),
        ATTENTION_BIAS,
        Only("hidden_activation", ("gelu",)),
        Only("classifier_activation", ("gelu",)),
        *(Only(key, (False,)) for key in ("mlp_bias", "norm_bias", "classifier_bias")),
    ),
    layer_entries=(
        _FirstLayer(),
        _LocalAttention(),
        _Rope(_every_third, 160000.0, 10000.0, ("global_rope_theta", "local_rope_theta")),
    ),
    unused=(
        "initializer_cutoff_factor", "embedding_dropout", "mlp_dropout", "classifier_dropout", "classifier_pooling",
        "deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index", "reference_compile",
        "repad_logits_with_grad", "position_embedding_type", "layer_norm_eps", "cls_token_id", "sep_token_id",
    ),
    head="decoder.weight",
)  # fmt: skip
