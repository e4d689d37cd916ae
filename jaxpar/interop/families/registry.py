"""The families of models that are known."""

from __future__ import annotations

from jaxpar.interop.families.bert import BERT
from jaxpar.interop.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from jaxpar.interop.families.gemma import GEMMA2, GEMMA3
from jaxpar.interop.families.gpt2 import GPT2
from jaxpar.interop.families.gpt_oss import GPT_OSS
from jaxpar.interop.families.hybrids.granite import GRANITE, GRANITEMOE, GRANITEMOEHYBRID
from jaxpar.interop.families.hybrids.kimi import KIMI_LINEAR
from jaxpar.interop.families.hybrids.mamba import MAMBA2
from jaxpar.interop.families.hybrids.minimax import MINIMAX
from jaxpar.interop.families.hybrids.nemotron import NEMOTRON_H
from jaxpar.interop.families.hybrids.spikingbrain import SPIKINGBRAIN
from jaxpar.interop.families.llama import LLAMA
from jaxpar.interop.families.mistral import MISTRAL
from jaxpar.interop.families.mixtral import MIXTRAL
from jaxpar.interop.families.modernbert import MODERNBERT
from jaxpar.interop.families.olmo import OLMO2, OLMOE
from jaxpar.interop.families.phi import PHI3
from jaxpar.interop.families.qwen import QWEN2, QWEN3, QWEN3_5, QWEN3_5_MOE, QWEN3_MOE, QWEN3_NEXT
from jaxpar.interop.families.smollm import SMOLLM3
from jaxpar.interop.mapping.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        LLAMA,
        MISTRAL,
        MIXTRAL,
        QWEN2,
        QWEN3,
        QWEN3_MOE,
        GEMMA2,
        GEMMA3,
        OLMO2,
        OLMOE,
        SMOLLM3,
        PHI3,
        GPT2,
        DEEPSEEK_V2,
        DEEPSEEK_V3,
        GPT_OSS,
        MAMBA2,
        QWEN3_NEXT,
        QWEN3_5,
        QWEN3_5_MOE,
        NEMOTRON_H,
        KIMI_LINEAR,
        MINIMAX,
        GRANITE,
        GRANITEMOE,
        GRANITEMOEHYBRID,
        SPIKINGBRAIN,
        MODERNBERT,
        BERT,
    )
}
"""Families by name. A model that several can express is exported as the first of them."""
