"""BERT: bidirectional, with norms behind each sum of the residual stream, and learned positions.

A norm behind a sum is one of the stream before what comes next: of the embeddings before the first layer, of each layer
before the next one, and of the last layer before the head.
"""

from __future__ import annotations

from dataclasses import replace

from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import Only, Same

_LAYER = "bert.encoder.layer.{layer}."


def _linear(theirs: str, ours: str) -> tuple[Tensor, Tensor]:
    """The bias and the matrix of a linear map of each layer."""
    return (
        Tensor(f"{_LAYER}{theirs}.bias", f"layers.{ours}_bias", Form.VECTOR),
        Tensor(f"{_LAYER}{theirs}.weight", f"layers.{ours}"),
    )


def _norm(theirs: str, ours: str, first: str = "") -> tuple[Tensor, Tensor]:
    """The bias and the scale of a norm, which published files call beta and gamma."""

    def tensor(name: str, also: str, weight: str) -> Tensor:
        line = Tensor(f"{theirs}.{name}", f"{ours}.{weight}", Form.VECTOR, also=f"{theirs}.{also}")
        return replace(line, first=f"{first}.{name}", also_first=f"{first}.{also}") if first else line

    return tensor("bias", "beta", "bias"), tensor("weight", "gamma", "scale")


BERT = Family(
    name="bert",
    model_type="bert",
    architecture="BertForMaskedLM",
    presets="BERT base and large",
    tensors=(
        Tensor("bert.embeddings.position_embeddings.weight", "embedding.positions", Form.TABLE),
        Tensor("bert.embeddings.token_type_embeddings.weight", "embedding.token_types", Form.TABLE),
        Tensor("bert.embeddings.word_embeddings.weight", "embedding.tokens", Form.TABLE),
        *_norm("bert.encoder.layer.{before}.output.LayerNorm", "layers.attention_norm", "bert.embeddings.LayerNorm"),
        *_norm(f"{_LAYER}attention.output.LayerNorm", "layers.mlp_norm"),
        *_linear("attention.output.dense", "attention.output"),
        *_linear("attention.self.key", "attention.key"),
        *_linear("attention.self.query", "attention.query"),
        *_linear("attention.self.value", "attention.value"),
        *_linear("intermediate.dense", "mlp.up"),
        *_linear("output.dense", "mlp.down"),
        *_norm("bert.encoder.layer.{last}.output.LayerNorm", "final_norm"),
        Tensor("cls.predictions.bias", "final_norm.head_bias", Form.VECTOR),
        *_norm("cls.predictions.transform.LayerNorm", "final_norm.transform.norm"),
        Tensor("cls.predictions.transform.dense.bias", "final_norm.transform.bias", Form.VECTOR),
        Tensor("cls.predictions.transform.dense.weight", "final_norm.transform.weight"),
    ),
    model={
        "norm": "layernorm", "norm_placement": "stream", "position": "learned", "activation": "exact_gelu",
        "causal": False, "attention_bias": True, "mlp_bias": True, "head_transform": True, "head_bias": True,
        "tied": True,
    },
    entries=(
        Same("vocab_size", "vocab", annotation=int),
        Same("hidden_size", "embed"),
        Same("intermediate_size", "mlp"),
        Same("num_hidden_layers", "layers"),
        Same("num_attention_heads", "heads"),
        Same("max_position_embeddings", "max_positions"),
        Same("type_vocab_size", "token_types", default=2),
        Same("layer_norm_eps", "norm_epsilon", default=1e-12),
        # transformers ties the head's bias with its weight; without, cls.predictions.bias is not read there.
        Only("tie_word_embeddings", (True,)),
        Only("hidden_act", ("gelu",)),
        Only("is_decoder", (False,)),
        Only("add_cross_attention", (False,)),
        Only("position_embedding_type", ("absolute",)),
    ),
    layer_entries=(),
    unused=(
        "attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout", "directionality", "pooler_fc_size",
        "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
    ),
    prefix="bert.",
    head="cls.predictions.decoder.weight",
    buffers=("embeddings.position_ids", "cls.predictions.decoder.bias"),
    omitted=("bert.pooler.", "cls.seq_relationship."),
)  # fmt: skip
