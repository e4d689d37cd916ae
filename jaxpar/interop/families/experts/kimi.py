"""Kimi K2: DeepSeek-V3's layers and class under another type."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.interop.families.deepseek import DEEPSEEK_V3

KIMI_K2 = replace(DEEPSEEK_V3, name="kimi_k2", model_type="kimi_k2", presets="Kimi K2, as published")
