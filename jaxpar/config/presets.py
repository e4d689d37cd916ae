"""Published models, as the configurations of their released weights give them."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.config.schema import ModelConfig

_GPT = ModelConfig(
    norm="layernorm", position="learned", attention_bias=True, mlp_bias=True, activation="gelu", tied=True, vocab=50257
)
_LLAMA3 = ModelConfig(
    norm="rmsnorm", position="rope", rope_base=500000.0, rope_scaling="llama3", rope_original_length=8192,
    rope_low_frequency=1.0, rope_high_frequency=4.0, activation="swiglu", kv_heads=8, vocab=128256,
)  # fmt: skip
_QWEN3 = ModelConfig(
    norm="rmsnorm", norm_epsilon=1e-6, position="rope", rope_base=1000000.0, qk_norm=True, activation="swiglu",
    kv_heads=8, head_dim=128, vocab=151936,
)  # fmt: skip

PRESETS: dict[str, ModelConfig] = {
    # Radford et al. 2019; trained without dropout, as its reproductions are
    "gpt2-124m": replace(
        _GPT, preset="gpt2-124m", layers=12, embed=768, heads=12, kv_heads=12, head_dim=64, mlp=3072, max_positions=1024
    ),
    # meta-llama/Llama-3.2-1B
    "llama3-1b": replace(
        _LLAMA3, preset="llama3-1b", layers=16, embed=2048, heads=32, head_dim=64, mlp=8192, tied=True, rope_factor=32.0
    ),
    # meta-llama/Llama-3.1-8B
    "llama3-8b": replace(
        _LLAMA3, preset="llama3-8b", layers=32, embed=4096, heads=32, head_dim=128, mlp=14336, rope_factor=8.0
    ),
    # meta-llama/Llama-3.1-70B
    "llama3-70b": replace(
        _LLAMA3, preset="llama3-70b", layers=80, embed=8192, heads=64, head_dim=128, mlp=28672, rope_factor=8.0
    ),
    # Qwen/Qwen3-0.6B-Base
    "qwen3-0.6b": replace(_QWEN3, preset="qwen3-0.6b", layers=28, embed=1024, heads=16, mlp=3072, tied=True),
    # Qwen/Qwen3-8B-Base
    "qwen3-8b": replace(_QWEN3, preset="qwen3-8b", layers=36, embed=4096, heads=32, mlp=12288),
    # mistralai/Mistral-7B-v0.1
    "mistral-7b": ModelConfig(
        preset="mistral-7b",
        layers=32,
        embed=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        mlp=14336,
        vocab=32000,
        norm="rmsnorm",
        norm_epsilon=1e-5,
        position="rope",
        rope_base=10000.0,
        activation="swiglu",
        window=4096,
    ),
    # Brown et al. 2020, table 2.1; every layer dense, where theirs alternate with sparse ones
    "gpt3-175b": replace(
        _GPT,
        preset="gpt3-175b",
        layers=96,
        embed=12288,
        heads=96,
        kv_heads=96,
        head_dim=128,
        mlp=49152,
        max_positions=2048,
    ),
}
"""Every field of the model by preset name."""
