"""Phi-3: queries, keys and values in one tensor, gate and up in another."""

from __future__ import annotations

from jaxpar.interop.families.llama import EMBEDDING, HEAD, NORM, NORMS, SILU, SIZES, TIED
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.keys import Only, Same
from jaxpar.interop.mapping.layer_keys import Windows, all_local
from jaxpar.interop.mapping.rope_keys import Rope

PHI3 = Family(
    name="phi3",
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    presets="Phi-3 mini and medium with 4k tokens, and Phi-4",
    tensors=(
        EMBEDDING,
        Tensor("model.layers.{layer}.self_attn.o_proj.weight", "layers.attention.output"),
        Tensor(
            "model.layers.{layer}.self_attn.qkv_proj.weight",
            "layers.attention.query layers.attention.key layers.attention.value",
        ),
        Tensor("model.layers.{layer}.mlp.gate_up_proj.weight", "layers.mlp.gate layers.mlp.up"),
        Tensor("model.layers.{layer}.mlp.down_proj.weight", "layers.mlp.down"),
        *NORMS,
        NORM,
        HEAD,
    ),
    model={"norm": "rmsnorm", "activation": "swiglu"},
    entries=(
        *SIZES,
        SILU,
        Only("attention_bias", (False,)),
        Same("rms_norm_eps", "norm_epsilon", default=1e-5),
        TIED,
    ),
    layer_entries=(Rope(scalings=("default",), partial=1.0), Windows(all_local, typed=False)),
    unused=("original_max_position_embeddings", "embd_pdrop", "resid_pdrop", "full_attn_mod", "interpolate_factor"),
)
