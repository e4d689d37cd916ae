"""Published models whose tokens see later ones, as the configurations of their released weights give them."""

from __future__ import annotations

from jaxpar.config.mappings.rope import RopeConfig
from jaxpar.config.schema.model import ModelConfig, Pattern

ENCODERS: dict[str, ModelConfig] = {
    # google-bert/bert-base-uncased
    "bert-base": ModelConfig(
        preset="bert-base", causal=False, layers=12, embed=768, heads=12, mlp=3072, vocab=30522, tied=True,
        norm="layernorm", norm_placement="stream", norm_epsilon=1e-12, position="learned", max_positions=512,
        token_types=2, attention_bias=True, mlp_bias=True, activation="exact_gelu", head_transform=True, head_bias=True,
    ),
    # answerdotai/ModernBERT-base
    "modernbert-base": ModelConfig(
        preset="modernbert-base", causal=False, layers=22, embed=768, heads=12, mlp=1152, vocab=50368, tied=True,
        norm="unbiased_layernorm", norm_placement="pre", rope=RopeConfig(base=160000.0), activation="exact_geglu",
        head_transform=True, head_bias=True,
        kinds={
            "first": {"norm_placement": "stream_mixer"},
            "local": {"window": 65, "rope": {"base": 10000.0}},
            "global": {},
        },
        pattern=Pattern(("local", "local", "global"), prefix=("first",)),
    ),
}  # fmt: skip
"""Every field of the model by preset name."""
