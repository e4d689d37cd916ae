"""Phi 1, 1.5 and 2: parallel blocks, biases everywhere, and rotary embeddings of a part of each head."""

from __future__ import annotations

from jaxpar.interop.families.dense.gpt_neox import GELUs
from jaxpar.interop.families.llama import ATTENTION, EMBEDDING, HEAD, HEAD_BIAS, NORM_BIASES, NORMS, SIZES, TIED, linear
from jaxpar.interop.mapping.family import Family, Tensor
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.keys import Only, Same
from jaxpar.interop.mapping.rope_keys import Rope

PHI = Family(
    name="phi",
    model_type="phi",
    architecture="PhiForCausalLM",
    presets="Phi-1, Phi-1.5 and Phi-2",
    tensors=(
        EMBEDDING,
        *(line for line in ATTENTION if ".o_proj." not in line.name),
        *linear("self_attn.dense", "attention.output"),
        *linear("mlp.fc1", "mlp.up"),
        *linear("mlp.fc2", "mlp.down"),
        NORMS[0],
        NORM_BIASES[0],
        Tensor("model.final_layernorm.weight", "final_norm.scale", Form.VECTOR),
        Tensor("model.final_layernorm.bias", "final_norm.bias", Form.VECTOR),
        HEAD,
        HEAD_BIAS,
    ),
    model={
        "norm": "layernorm", "norm_placement": "parallel", "attention_bias": True, "mlp_bias": True, "head_bias": True,
    },
    entries=(
        *SIZES,
        GELUs(absent="gelu_new"),
        Same("layer_norm_eps", "norm_epsilon", default=1e-5),
        Only("qk_layernorm", (False,)),
        TIED,
    ),
    layer_entries=(Rope(partial=0.5),),
    unused=("embd_pdrop", "resid_pdrop"),
)  # fmt: skip
