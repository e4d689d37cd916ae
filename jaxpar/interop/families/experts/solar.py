"""Solar Open: Llama's attention, and DeepSeek-V3's experts in all layers."""

from __future__ import annotations

from jaxpar.interop.families.deepseek import CORRECTION_BIAS, SHARED
from jaxpar.interop.families.llama import ATTENTION, EMBEDDING, GROUPED_SIZES, HEAD, NORM, NORMS, SILU, TIED
from jaxpar.interop.mapping.deepseek_keys import DeepSeekExperts
from jaxpar.interop.mapping.expert_keys import EXPERTS
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.keys import Only, QkvBias, Same
from jaxpar.interop.mapping.rope_keys import Rope

SOLAR_OPEN = Family(
    name="solar_open",
    model_type="solar_open",
    architecture="SolarOpenForCausalLM",
    presets="Solar Open 100B",
    tensors=(EMBEDDING, *ATTENTION, *EXPERTS, CORRECTION_BIAS, *SHARED, *NORMS, NORM, HEAD),
    model={"norm": "rmsnorm", "activation": "swiglu"},
    entries=(
        *(entry for entry in GROUPED_SIZES if "intermediate_size" not in entry.keys),
        Same("head_dim", "head_dim", default=128),
        SILU,
        Same("rms_norm_eps", "norm_epsilon", default=1e-5),
        QkvBias("attention_bias"),
        Only("use_qk_norm", (False,)),
        TIED,
    ),
    layer_entries=(Rope(base=1000000.0, partial=1.0), DeepSeekExperts("sigmoid", dense=False)),
    unused=("output_router_logits", "intermediate_size"),
)
