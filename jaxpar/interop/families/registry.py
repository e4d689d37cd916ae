"""The families of models that are known."""

from __future__ import annotations

from jaxpar.interop.families.gemma import GEMMA2, GEMMA3
from jaxpar.interop.families.gpt2 import GPT2
from jaxpar.interop.families.llama import LLAMA
from jaxpar.interop.families.mistral import MISTRAL
from jaxpar.interop.families.olmo import OLMO2
from jaxpar.interop.families.phi import PHI3
from jaxpar.interop.families.qwen import QWEN2, QWEN3
from jaxpar.interop.families.smollm import SMOLLM3
from jaxpar.interop.mapping.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family for family in (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3, OLMO2, SMOLLM3, PHI3, GPT2)
}
"""By name. A model of ours that several can hold is written as the first of them."""
