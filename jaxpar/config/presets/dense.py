"""Published models whose layers are dense, as the configurations of their released weights give them."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.config.mappings.rope import RopeConfig
from jaxpar.config.presets.experts import LLAMA, QWEN3
from jaxpar.config.schema.model import ModelConfig, Pattern

_GPT = ModelConfig(
    norm="layernorm", position="learned", attention_bias=True, mlp_bias=True, activation="gelu", tied=True, vocab=50257
)
_LLAMA3 = ModelConfig(
    norm="rmsnorm", position="rope", activation="swiglu", kv_heads=8, vocab=128256,
    rope=RopeConfig(
        base=500000.0, scaling="llama3", factor=8.0, original_length=8192, low_frequency=1.0, high_frequency=4.0
    ),
)  # fmt: skip
_QWEN2 = ModelConfig(
    norm="rmsnorm",
    norm_epsilon=1e-6,
    position="rope",
    rope=RopeConfig(base=1000000.0),
    attention_bias="qkv",
    activation="swiglu",
)

DENSE: dict[str, ModelConfig] = {
    # Radford et al. 2019; trained without dropout, as its reproductions are
    "gpt2-124m": replace(
        _GPT, preset="gpt2-124m", layers=12, embed=768, heads=12, kv_heads=12, head_dim=64, mlp=3072, max_positions=1024
    ),
    # meta-llama/Llama-3.2-1B
    "llama3-1b": replace(
        _LLAMA3,
        preset="llama3-1b",
        layers=16,
        embed=2048,
        heads=32,
        head_dim=64,
        mlp=8192,
        tied=True,
        rope=replace(_LLAMA3.rope, factor=32.0),
    ),
    # meta-llama/Llama-3.1-8B
    "llama3-8b": replace(_LLAMA3, preset="llama3-8b", layers=32, embed=4096, heads=32, head_dim=128, mlp=14336),
    # meta-llama/Llama-3.1-70B
    "llama3-70b": replace(_LLAMA3, preset="llama3-70b", layers=80, embed=8192, heads=64, head_dim=128, mlp=28672),
    # meta-llama/Llama-3.1-405B
    "llama3-405b": replace(_LLAMA3, preset="llama3-405b", layers=126, embed=16384, heads=128, head_dim=128, mlp=53248),
    # Qwen/Qwen3-0.6B-Base
    "qwen3-0.6b": replace(QWEN3, preset="qwen3-0.6b", layers=28, embed=1024, heads=16, mlp=3072, tied=True),
    # Qwen/Qwen3-8B-Base
    "qwen3-8b": replace(QWEN3, preset="qwen3-8b", layers=36, embed=4096, heads=32, mlp=12288),
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
        rope=RopeConfig(base=10000.0),
        activation="swiglu",
        window=4096,
    ),
    # Qwen/Qwen2.5-0.5B
    "qwen2.5-0.5b": replace(
        _QWEN2,
        preset="qwen2.5-0.5b",
        layers=24,
        embed=896,
        heads=14,
        kv_heads=2,
        head_dim=64,
        mlp=4864,
        tied=True,
        vocab=151936,
    ),
    # Qwen/Qwen2.5-7B
    "qwen2.5-7b": replace(
        _QWEN2, preset="qwen2.5-7b", layers=28, embed=3584, heads=28, kv_heads=4, head_dim=128, mlp=18944, vocab=152064
    ),
    # SpikingBrain-7B (arXiv:2509.05276), which began as Qwen2.5-7B
    "spikingbrain-7b": replace(
        _QWEN2,
        preset="spikingbrain-7b",
        layers=28,
        embed=3584,
        heads=28,
        kv_heads=4,
        head_dim=128,
        mlp=18944,
        vocab=152064,
        linear_attention=LinearAttentionConfig(key_heads=4),
        kinds={"state": {"mixer": "relu_gla"}, "local": {"window": 4096}},
        pattern=Pattern(("state", "local")),
    ),
    # allenai/OLMo-2-0425-1B
    "olmo2-1b": replace(
        LLAMA,
        preset="olmo2-1b",
        layers=16,
        embed=2048,
        heads=16,
        kv_heads=16,
        head_dim=128,
        mlp=8192,
        vocab=100352,
        norm_placement="post",
        norm_epsilon=1e-6,
        rope=RopeConfig(base=500000.0),
        qk_norm="projection",
    ),
    # meta-llama/Llama-2-7b-hf
    "llama2-7b": replace(
        LLAMA,
        preset="llama2-7b",
        layers=32,
        embed=4096,
        heads=32,
        kv_heads=32,
        head_dim=128,
        mlp=11008,
        vocab=32000,
        rope=RopeConfig(base=10000.0),
    ),
    # HuggingFaceTB/SmolLM2-135M
    "smollm2-135m": replace(
        LLAMA,
        preset="smollm2-135m",
        layers=30,
        embed=576,
        heads=9,
        kv_heads=3,
        head_dim=64,
        mlp=1536,
        vocab=49152,
        rope=RopeConfig(base=100000.0),
        tied=True,
    ),
    # Brown et al. 2020, table 2.1; every layer has dense attention, where theirs alternate with sparse ones
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
    # zai-org/GLM-4-9B-0414
    "glm4-9b": replace(
        LLAMA,
        preset="glm4-9b",
        layers=40,
        embed=4096,
        heads=32,
        kv_heads=2,
        head_dim=128,
        mlp=13696,
        vocab=151552,
        norm_placement="sandwich",
        rope=RopeConfig(base=10000.0, partial=0.5),
        attention_bias="qkv",
    ),
    # EleutherAI/gpt-neox-20b
    "gpt-neox-20b": ModelConfig(
        preset="gpt-neox-20b",
        layers=44,
        embed=6144,
        heads=64,
        mlp=24576,
        vocab=50432,
        norm="layernorm",
        norm_placement="parallel_norms",
        rope=RopeConfig(partial=0.25),
        attention_bias=True,
        mlp_bias=True,
        activation="gelu",
    ),
    # swiss-ai/Apertus-8B-2509
    "apertus-8b": replace(
        LLAMA,
        preset="apertus-8b",
        layers=32,
        embed=4096,
        heads=32,
        kv_heads=8,
        mlp=21504,
        vocab=131072,
        rope=RopeConfig(
            base=12000000.0, scaling="llama3", factor=8.0, original_length=8192, low_frequency=1.0, high_frequency=4.0
        ),
        qk_norm=True,
        activation="xielu",
    ),
    # allenai/OLMo-7B-hf, by the defaults of its class in transformers
    "olmo-7b": replace(
        LLAMA, preset="olmo-7b", layers=32, embed=4096, heads=32, mlp=11008, vocab=50304, norm="weightless_layernorm"
    ),
    # stabilityai/stablelm-3b-4e1t, by the defaults of its class in transformers
    "stablelm-3b": replace(
        LLAMA,
        preset="stablelm-3b",
        layers=32,
        embed=2560,
        heads=32,
        mlp=6912,
        vocab=50304,
        norm="layernorm",
        rope=RopeConfig(partial=0.25),
    ),
    # baidu/ERNIE-4.5-0.3B-PT, by the defaults of its class in transformers
    "ernie4.5-0.3b": replace(
        LLAMA,
        preset="ernie4.5-0.3b",
        layers=18,
        embed=1024,
        heads=16,
        kv_heads=2,
        head_dim=128,
        mlp=3072,
        vocab=103424,
        rope=RopeConfig(base=500000.0),
        tied=True,
    ),
}
"""Every field of the model by preset name."""
