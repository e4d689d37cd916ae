"""DeepSeek-V2 and V3: latent attention, shared experts, and experts that are limited to groups."""

from __future__ import annotations

from jaxpar.interop.families.llama import EMBEDDING, FEED_FORWARD, HEAD, NORM, NORM_EPSILON, NORMS, SILU, TIED
from jaxpar.interop.mapping.deepseek_keys import DeepSeekExperts, LatentWidths
from jaxpar.interop.mapping.expert_keys import EXPERTS
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import Only, Same
from jaxpar.interop.mapping.rope_keys import Rope

_ATTENTION = (
    Tensor("model.layers.{layer}.self_attn.q_proj.weight", "layers.attention.query", rotary=True),
    Tensor("model.layers.{layer}.self_attn.q_a_proj.weight", "layers.attention.query_down"),
    Tensor("model.layers.{layer}.self_attn.q_a_layernorm.weight", "layers.attention.query_norm", Form.VECTOR),
    Tensor("model.layers.{layer}.self_attn.q_b_proj.weight", "layers.attention.query_up", rotary=True),
    Tensor("model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight", "layers.attention.kv_down", rotary=True),
    Tensor("model.layers.{layer}.self_attn.kv_a_layernorm.weight", "layers.attention.kv_norm", Form.VECTOR),
    Tensor(
        "model.layers.{layer}.self_attn.kv_b_proj.weight", "layers.attention.key_up layers.attention.value_up",
        by_head=True,
    ),
    Tensor("model.layers.{layer}.self_attn.o_proj.weight", "layers.attention.output"),
)  # fmt: skip
SHARED = (
    Tensor("model.layers.{layer}.mlp.shared_experts.gate_proj.weight", "layers.mlp.shared_gate"),
    Tensor("model.layers.{layer}.mlp.shared_experts.up_proj.weight", "layers.mlp.shared_up"),
    Tensor("model.layers.{layer}.mlp.shared_experts.down_proj.weight", "layers.mlp.shared_down"),
)
CORRECTION_BIAS = Tensor("model.layers.{layer}.mlp.gate.e_score_correction_bias", "layers.mlp.bias", Form.VECTOR)
_MODEL = {"norm": "rmsnorm", "activation": "swiglu"}
_ENTRIES = (
    Same("vocab_size", "vocab", annotation=int),
    Same("hidden_size", "embed"),
    Same("intermediate_size", "mlp"),
    Same("num_hidden_layers", "layers"),
    Same("num_attention_heads", "heads"),
    # transformers has this one for norms of latent vectors, whatever the configuration names.
    LatentWidths(norm_epsilon=1e-6),
    SILU,
    NORM_EPSILON,
    Only("attention_bias", (False,)),
    Only("mlp_bias", (False,)),
    TIED,
)
_UNUSED = ("aux_loss_alpha", "seq_aux", "ep_size", "output_router_logits", "router_aux_loss_coef")

DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    model_type="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    presets="DeepSeek-V2 and V2-Lite",
    tensors=(EMBEDDING, *_ATTENTION, *FEED_FORWARD, *EXPERTS, *SHARED, *NORMS, NORM, HEAD),
    model=_MODEL,
    entries=_ENTRIES,
    layer_entries=(Rope(), DeepSeekExperts("softmax_top_k")),
    unused=_UNUSED,
)

DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    presets="DeepSeek-V3 and R1",
    tensors=(EMBEDDING, *_ATTENTION, *FEED_FORWARD, *EXPERTS, CORRECTION_BIAS, *SHARED, *NORMS, NORM, HEAD),
    model=_MODEL,
    entries=(*_ENTRIES, Only("rope_interleave", (True,))),
    layer_entries=(Rope(), DeepSeekExperts("sigmoid")),
    unused=(*_UNUSED, "num_nextn_predict_layers"),
    further_layers="num_nextn_predict_layers",
)
