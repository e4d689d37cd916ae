"""Gemma, as the configurations of its released weights give it."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.config.mappings.rope import RopeConfig
from jaxpar.config.schema.model import ModelConfig, Pattern

_GEMMA = ModelConfig(
    norm="zero_centered_rmsnorm", norm_placement="sandwich", norm_epsilon=1e-6, position="rope", head_dim=256,
    attention_scale=256**-0.5, activation="geglu", tied=True, embedding_scale=True,
)  # fmt: skip
_GEMMA3 = replace(_GEMMA, rope=RopeConfig(base=1000000.0), qk_norm=True)
_FIVE_TO_ONE = (*["local"] * 5, "global")

GEMMA: dict[str, ModelConfig] = {
    # google/gemma-7b, by the defaults of its class in transformers
    "gemma-7b": replace(
        _GEMMA,
        preset="gemma-7b",
        layers=28,
        embed=3072,
        heads=16,
        kv_heads=16,
        mlp=24576,
        vocab=256000,
        norm_placement="pre",
        attention_scale=None,
    ),
    # google/gemma-2-2b
    "gemma2-2b": replace(
        _GEMMA,
        preset="gemma2-2b",
        layers=26,
        embed=2304,
        heads=8,
        kv_heads=4,
        mlp=9216,
        vocab=256000,
        rope=RopeConfig(base=10000.0),
        attention_softcap=50.0,
        logit_softcap=30.0,
        kinds={"local": {"window": 4096}, "global": {}},
        pattern=Pattern(("local", "global")),
    ),
    # google/gemma-3-1b-pt
    "gemma3-1b": replace(
        _GEMMA3,
        preset="gemma3-1b",
        layers=26,
        embed=1152,
        heads=4,
        kv_heads=1,
        mlp=6912,
        vocab=262144,
        kinds={"local": {"window": 512, "rope": {"base": 10000.0}}, "global": {}},
        pattern=Pattern(_FIVE_TO_ONE, suffix=("local",) * 2),
    ),
    # google/gemma-3-4b-pt, the text model
    "gemma3-4b": replace(
        _GEMMA3,
        preset="gemma3-4b",
        layers=34,
        embed=2560,
        heads=8,
        kv_heads=4,
        mlp=10240,
        vocab=262208,
        kinds={
            "local": {"window": 1024, "rope": {"base": 10000.0}},
            "global": {"rope": {"scaling": "linear", "factor": 8.0}},
        },
        pattern=Pattern(_FIVE_TO_ONE, suffix=("local",) * 4),
    ),
}
"""Every field of the model by preset name."""
