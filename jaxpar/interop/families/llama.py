"""Llama 2 and 3, SmolLM 1 and 2, and the lines that most families share."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import Only, Same
from jaxpar.interop.mapping.rope_keys import Rope

EMBEDDING = Tensor("model.embed_tokens.weight", "embedding.tokens", Form.TABLE)
NORM = Tensor("model.norm.weight", "final_norm.scale", Form.VECTOR)
HEAD = Tensor("lm_head.weight", "head.weight")
HEAD_BIAS = Tensor("lm_head.bias", "final_norm.head_bias", Form.VECTOR)


def linear(theirs: str, ours: str) -> tuple[Tensor, Tensor]:
    """The matrix and the bias of a linear map of each layer; a model without the bias has no such tensor."""
    return (
        Tensor(f"model.layers.{{layer}}.{theirs}.weight", f"layers.{ours}"),
        Tensor(f"model.layers.{{layer}}.{theirs}.bias", f"layers.{ours}_bias", Form.VECTOR),
    )


ATTENTION = (
    *linear("self_attn.q_proj", "attention.query"),
    *linear("self_attn.k_proj", "attention.key"),
    *linear("self_attn.v_proj", "attention.value"),
    *linear("self_attn.o_proj", "attention.output"),
)
PAIRED_ATTENTION = tuple(replace(line, rotary=".q_proj." in line.name or ".k_proj." in line.name) for line in ATTENTION)
"""The same where rotating pairs of queries and keys are neighbours."""
QK_NORMS = (
    Tensor("model.layers.{layer}.self_attn.q_norm.weight", "layers.attention.query_norm", Form.VECTOR),
    Tensor("model.layers.{layer}.self_attn.k_norm.weight", "layers.attention.key_norm", Form.VECTOR),
)
PLAIN_FEED_FORWARD = (*linear("mlp.up_proj", "mlp.up"), *linear("mlp.down_proj", "mlp.down"))
FEED_FORWARD = (*linear("mlp.gate_proj", "mlp.gate"), *PLAIN_FEED_FORWARD)
NORMS = (
    Tensor("model.layers.{layer}.input_layernorm.weight", "layers.attention_norm.scale", Form.VECTOR),
    Tensor("model.layers.{layer}.post_attention_layernorm.weight", "layers.mlp_norm.scale", Form.VECTOR),
)
OUTPUT_NORMS = (
    Tensor("model.layers.{layer}.post_attention_layernorm.weight", "layers.post_attention_norm.scale", Form.VECTOR),
    Tensor("model.layers.{layer}.post_feedforward_layernorm.weight", "layers.post_mlp_norm.scale", Form.VECTOR),
)
NORM_BIASES = (
    Tensor("model.layers.{layer}.input_layernorm.bias", "layers.attention_norm.bias", Form.VECTOR),
    Tensor("model.layers.{layer}.post_attention_layernorm.bias", "layers.mlp_norm.bias", Form.VECTOR),
    Tensor("model.norm.bias", "final_norm.bias", Form.VECTOR),
)
"""Biases of norms that are LayerNorms."""
TENSORS = (EMBEDDING, *ATTENTION, *FEED_FORWARD, *NORMS, NORM, HEAD)

_SIZES = (
    Same("vocab_size", "vocab", annotation=int),
    Same("hidden_size", "embed"),
    Same("intermediate_size", "mlp"),
    Same("num_hidden_layers", "layers"),
    Same("num_attention_heads", "heads"),
)
SIZES = (*_SIZES, Same("num_key_value_heads", "kv_heads", default=None))
GROUPED_SIZES = (*_SIZES, Same("num_key_value_heads", "kv_heads"))
"""Sizes of families for which transformers' default number of key heads is not that of query heads."""
ATTENTION_BIAS = Same("attention_bias", "attention_bias", default=False, annotation=bool)
NORM_EPSILON = Same("rms_norm_eps", "norm_epsilon", default=1e-6)
TIED = Same("tie_word_embeddings", "tied", default=False)
HEAD_DIM = Same("head_dim", "head_dim", default=None)
SILU = Only("hidden_act", ("silu", "swish"))

LLAMA = Family(
    name="llama",
    model_type="llama",
    architecture="LlamaForCausalLM",
    presets="Llama 2, 3, 3.1, 3.2 and 3.3; SmolLM and SmolLM2",
    tensors=TENSORS,
    model={"norm": "rmsnorm", "activation": "swiglu"},
    entries=(
        *SIZES,
        HEAD_DIM,
        SILU,
        NORM_EPSILON,
        ATTENTION_BIAS,
        Same("mlp_bias", "mlp_bias", default=False),
        TIED,
        Only("rope_interleaved", (False,)),
    ),
    layer_entries=(Rope(),),
    unused=("is_llama_config",),
)
