"""Published models."""

from __future__ import annotations

from jaxpar.config.presets.dense import DENSE
from jaxpar.config.presets.encoders import ENCODERS
from jaxpar.config.presets.experts import EXPERTS
from jaxpar.config.presets.gemma import GEMMA
from jaxpar.config.schema.model import ModelConfig

PRESETS: dict[str, ModelConfig] = {**DENSE, **GEMMA, **EXPERTS, **ENCODERS}
"""Every field of the model by preset name."""
