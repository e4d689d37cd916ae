"""The families of models that are known."""

from __future__ import annotations

from jaxpar.interop.families.bert import BERT
from jaxpar.interop.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from jaxpar.interop.families.dense.apertus import APERTUS
from jaxpar.interop.families.dense.arcee import ARCEE
from jaxpar.interop.families.dense.cohere import COHERE, COHERE2
from jaxpar.interop.families.dense.exaone import EXAONE4
from jaxpar.interop.families.dense.gpt_neox import GPT_NEOX
from jaxpar.interop.families.dense.phi import PHI
from jaxpar.interop.families.dense.seed_oss import SEED_OSS
from jaxpar.interop.families.dense.stablelm import STABLELM
from jaxpar.interop.families.dense.starcoder import STARCODER2
from jaxpar.interop.families.experts.dots import DOTS1
from jaxpar.interop.families.experts.ernie import ERNIE4_5, ERNIE4_5_MOE
from jaxpar.interop.families.experts.glm import GLM4, GLM4_MOE
from jaxpar.interop.families.experts.hunyuan import HUNYUAN_V1_DENSE, HUNYUAN_V1_MOE
from jaxpar.interop.families.experts.kimi import KIMI_K2
from jaxpar.interop.families.experts.minimax import MINIMAX_M2
from jaxpar.interop.families.experts.mistral import MISTRAL4
from jaxpar.interop.families.experts.phi import PHIMOE
from jaxpar.interop.families.experts.qwen import QWEN2_MOE
from jaxpar.interop.families.experts.solar import SOLAR_OPEN
from jaxpar.interop.families.gemma import GEMMA, GEMMA2, GEMMA3
from jaxpar.interop.families.gpt2 import GPT2
from jaxpar.interop.families.gpt_oss import GPT_OSS
from jaxpar.interop.families.hybrids.gemma3n import GEMMA3N
from jaxpar.interop.families.hybrids.gemma4 import GEMMA4
from jaxpar.interop.families.hybrids.granite import GRANITE, GRANITEMOE, GRANITEMOEHYBRID
from jaxpar.interop.families.hybrids.kimi import KIMI_LINEAR
from jaxpar.interop.families.hybrids.lfm import LFM2, LFM2_MOE
from jaxpar.interop.families.hybrids.llama4 import LLAMA4
from jaxpar.interop.families.hybrids.mamba import MAMBA2
from jaxpar.interop.families.hybrids.minimax import MINIMAX
from jaxpar.interop.families.hybrids.nemotron import NEMOTRON_H
from jaxpar.interop.families.hybrids.spikingbrain import SPIKINGBRAIN
from jaxpar.interop.families.llama import LLAMA
from jaxpar.interop.families.mistral import MINISTRAL, MINISTRAL3, MISTRAL
from jaxpar.interop.families.mixtral import MIXTRAL
from jaxpar.interop.families.modernbert import MODERNBERT
from jaxpar.interop.families.olmo import OLMO, OLMO2, OLMO3, OLMOE
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
        GEMMA,
        OLMO3,
        SEED_OSS,
        ARCEE,
        EXAONE4,
        MINISTRAL,
        MINISTRAL3,
        STARCODER2,
        STABLELM,
        OLMO,
        COHERE,
        COHERE2,
        GPT_NEOX,
        PHI,
        APERTUS,
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
        QWEN2_MOE,
        GLM4,
        GLM4_MOE,
        DOTS1,
        ERNIE4_5,
        ERNIE4_5_MOE,
        HUNYUAN_V1_DENSE,
        HUNYUAN_V1_MOE,
        MINIMAX_M2,
        KIMI_K2,
        MISTRAL4,
        SOLAR_OPEN,
        PHIMOE,
        LFM2,
        LFM2_MOE,
        LLAMA4,
        GEMMA3N,
        GEMMA4,
        MODERNBERT,
        BERT,
    )
}
"""Families by name. A model that several can express is exported as the first of them."""

_INDEXER = "an indexer chooses the keys that its attention sees (index_topk), which no block here does"
LACKING = {
    "deepseek_v32": _INDEXER,
    "glm_moe_dsa": _INDEXER,
}
"""Types that are like a known one but for a block that is not there, with that block."""
