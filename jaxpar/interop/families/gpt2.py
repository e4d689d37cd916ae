"""GPT-2: matrices of `Conv1D`, which are [in, out]; queries, keys and values in one tensor."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.config.schema import ModelConfig
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import REQUIRED, HFConfig, Only, Same


@dataclass(frozen=True)
class InnerWidth:
    """`n_inner`; null means four times `n_embd`."""

    keys: tuple[str, ...] = ("n_inner",)

    def read(self, hf_config: HFConfig) -> dict[str, object]:
        inner = hf_config.get("n_inner")
        return {
            "mlp": 4 * hf_config.typed("n_embd", "embed", REQUIRED)
            if inner is None
            else hf_config.typed("n_inner", "mlp")
        }

    def write(self, model: ModelConfig) -> dict[str, object]:
        return {"n_inner": model.mlp}


_QKV = "layers.attention.query layers.attention.key layers.attention.value"
_QKV_BIAS = "layers.attention.query_bias layers.attention.key_bias layers.attention.value_bias"

GPT2 = Family(
    name="gpt2",
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    presets="GPT-2 and its sizes",
    tensors=(
        Tensor("transformer.wte.weight", "embedding.tokens", Form.TABLE),
        Tensor("transformer.wpe.weight", "embedding.positions", Form.TABLE),
        Tensor("transformer.h.{layer}.ln_1.weight", "layers.attention_norm.scale", Form.VECTOR),
        Tensor("transformer.h.{layer}.ln_1.bias", "layers.attention_norm.bias", Form.VECTOR),
        Tensor("transformer.h.{layer}.attn.c_attn.weight", _QKV, Form.TABLE),
        Tensor("transformer.h.{layer}.attn.c_attn.bias", _QKV_BIAS, Form.VECTOR),
        Tensor("transformer.h.{layer}.attn.c_proj.weight", "layers.attention.output", Form.TABLE),
        Tensor("transformer.h.{layer}.attn.c_proj.bias", "layers.attention.output_bias", Form.VECTOR),
        Tensor("transformer.h.{layer}.ln_2.weight", "layers.mlp_norm.scale", Form.VECTOR),
        Tensor("transformer.h.{layer}.ln_2.bias", "layers.mlp_norm.bias", Form.VECTOR),
        Tensor("transformer.h.{layer}.mlp.c_fc.weight", "layers.mlp.up", Form.TABLE),
        Tensor("transformer.h.{layer}.mlp.c_fc.bias", "layers.mlp.up_bias", Form.VECTOR),
        Tensor("transformer.h.{layer}.mlp.c_proj.weight", "layers.mlp.down", Form.TABLE),
        Tensor("transformer.h.{layer}.mlp.c_proj.bias", "layers.mlp.down_bias", Form.VECTOR),
        Tensor("transformer.ln_f.weight", "final_norm.scale", Form.VECTOR),
        Tensor("transformer.ln_f.bias", "final_norm.bias", Form.VECTOR),
        Tensor("lm_head.weight", "head.weight"),
    ),
    model={"norm": "layernorm", "position": "learned", "activation": "gelu", "attention_bias": True, "mlp_bias": True},
    entries=(
        Same("vocab_size", "vocab", annotation=int),
        Same("n_positions", "max_positions", default=1024, also=("max_position_embeddings",)),
        Same("n_embd", "embed"),
        Same("n_layer", "layers"),
        Same("n_head", "heads"),
        InnerWidth(),
        Only("activation_function", ("gelu_new", "gelu_pytorch_tanh")),
        Same("layer_norm_epsilon", "norm_epsilon", default=1e-5),
        Only("scale_attn_weights", (True,)),
        Only("scale_attn_by_inverse_layer_idx", (False,)),
        Only("add_cross_attention", (False,)),
        Same("tie_word_embeddings", "tied", default=True),
    ),
    layer_entries=(),
    unused=(
        "n_ctx", "attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    ),
    prefix="transformer.",
    buffers=(".attn.bias", ".attn.masked_bias"),
)  # fmt: skip
