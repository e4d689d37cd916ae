"""Published models with experts, as the configurations of their released weights give them."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.config.mappings.rope import RopeConfig
from jaxpar.config.schema.model import ModelConfig, Pattern

LLAMA = ModelConfig(norm="rmsnorm", norm_epsilon=1e-5, position="rope", activation="swiglu")
QWEN3 = ModelConfig(
    norm="rmsnorm", norm_epsilon=1e-6, position="rope", rope=RopeConfig(base=1000000.0), qk_norm=True,
    activation="swiglu", kv_heads=8, head_dim=128, vocab=151936,
)  # fmt: skip
_DEEPSEEK = ModelConfig(
    norm="rmsnorm", norm_epsilon=1e-6, position="rope", activation="swiglu",
    rope=RopeConfig(base=10000.0, scaling="yarn", factor=40.0, original_length=4096),
    kinds={"dense": {"experts": None}, "routed": {}},
)  # fmt: skip
_GPT_OSS = ModelConfig(
    norm="rmsnorm", norm_epsilon=1e-5, position="rope",
    rope=RopeConfig(base=150000.0, scaling="yarn", factor=32.0, original_length=4096, truncate=False),
    attention_bias=True, attention_sinks=True, mlp_bias=True,
    activation="clamped_swiglu", embed=2880, heads=64, kv_heads=8, head_dim=64, mlp=2880, vocab=201088,
    kinds={"local": {"window": 128}, "global": {}}, pattern=Pattern(("local", "global")),
)  # fmt: skip

EXPERTS: dict[str, ModelConfig] = {
    # Qwen/Qwen3-30B-A3B-Base
    "qwen3-30b-a3b": replace(
        QWEN3,
        preset="qwen3-30b-a3b",
        layers=48,
        embed=2048,
        heads=32,
        kv_heads=4,
        mlp=6144,
        experts=ExpertsConfig(count=128, per_token=8, width=768),
    ),
    # Qwen/Qwen3-235B-A22B
    "qwen3-235b-a22b": replace(
        QWEN3,
        preset="qwen3-235b-a22b",
        layers=94,
        embed=4096,
        heads=64,
        kv_heads=4,
        mlp=12288,
        experts=ExpertsConfig(count=128, per_token=8, width=1536),
    ),
    # allenai/OLMoE-1B-7B-0924
    "olmoe-1b-7b": replace(
        LLAMA,
        preset="olmoe-1b-7b",
        layers=16,
        embed=2048,
        heads=16,
        kv_heads=16,
        head_dim=128,
        mlp=1024,
        vocab=50304,
        rope=RopeConfig(base=10000.0),
        qk_norm="projection",
        experts=ExpertsConfig(count=64, per_token=8, router="softmax_top_k"),
    ),
    # openai/gpt-oss-20b
    "gpt-oss-20b": replace(_GPT_OSS, preset="gpt-oss-20b", layers=24, experts=ExpertsConfig(count=32, per_token=4)),
    # openai/gpt-oss-120b
    "gpt-oss-120b": replace(_GPT_OSS, preset="gpt-oss-120b", layers=36, experts=ExpertsConfig(count=128, per_token=4)),
    # mistralai/Mixtral-8x7B-v0.1
    "mixtral-8x7b": replace(
        LLAMA,
        preset="mixtral-8x7b",
        layers=32,
        embed=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        mlp=14336,
        vocab=32000,
        rope=RopeConfig(base=1000000.0),
        experts=ExpertsConfig(count=8, per_token=2),
    ),
    # deepseek-ai/DeepSeek-V2-Lite
    "deepseek-v2-lite": replace(
        _DEEPSEEK,
        preset="deepseek-v2-lite",
        layers=27,
        embed=2048,
        heads=16,
        mlp=10944,
        vocab=102400,
        rope=replace(_DEEPSEEK.rope, mscale=0.707, mscale_all_dim=0.707),
        latent_attention=LatentAttentionConfig(kv_rank=512),
        experts=ExpertsConfig(count=64, per_token=6, width=1408, shared=2, router="softmax_top_k"),
        pattern=Pattern(("routed",), prefix=("dense",)),
    ),
    # deepseek-ai/DeepSeek-V3-Base, without its layer that predicts a second token
    "deepseek-v3": replace(
        _DEEPSEEK,
        preset="deepseek-v3",
        layers=61,
        embed=7168,
        heads=128,
        mlp=18432,
        vocab=129280,
        rope=replace(_DEEPSEEK.rope, mscale=1.0, mscale_all_dim=1.0),
        latent_attention=LatentAttentionConfig(kv_rank=512, query_rank=1536),
        experts=ExpertsConfig(
            count=256,
            per_token=8,
            width=2048,
            shared=1,
            router="sigmoid",
            router_options={"groups": 8, "groups_per_token": 4, "scale": 2.5},
        ),
        pattern=Pattern(("routed",), prefix=("dense",) * 3),
    ),
    # Qwen/Qwen1.5-MoE-A2.7B
    "qwen1.5-moe-a2.7b": replace(
        LLAMA,
        preset="qwen1.5-moe-a2.7b",
        layers=24,
        embed=2048,
        heads=16,
        kv_heads=16,
        head_dim=128,
        mlp=5632,
        vocab=151936,
        norm_epsilon=1e-6,
        rope=RopeConfig(base=1000000.0),
        attention_bias="qkv",
        experts=ExpertsConfig(count=60, per_token=4, width=1408, shared=4, shared_router=True, router="softmax_top_k"),
    ),
    # moonshotai/Kimi-K2-Base
    "kimi-k2": replace(
        _DEEPSEEK,
        preset="kimi-k2",
        layers=61,
        embed=7168,
        heads=64,
        mlp=18432,
        vocab=163840,
        rope=RopeConfig(
            base=50000.0,
            scaling="yarn",
            factor=32.0,
            original_length=4096,
            beta_fast=1.0,
            mscale=1.0,
            mscale_all_dim=1.0,
        ),
        latent_attention=LatentAttentionConfig(kv_rank=512, query_rank=1536),
        experts=ExpertsConfig(
            count=384, per_token=8, width=2048, shared=1, router="sigmoid", router_options={"scale": 2.827}
        ),
        pattern=Pattern(("routed",), prefix=("dense",)),
    ),
    # baidu/ERNIE-4.5-21B-A3B-PT, by the defaults of its class in transformers
    "ernie4.5-21b-a3b": replace(
        LLAMA,
        preset="ernie4.5-21b-a3b",
        layers=28,
        embed=2560,
        heads=20,
        kv_heads=4,
        mlp=12288,
        vocab=103424,
        rope=RopeConfig(base=500000.0),
        tied=True,
        experts=ExpertsConfig(count=64, per_token=6, width=1536, shared=2, router="biased_softmax"),
        kinds={"dense": {"experts": None}, "routed": {}},
        pattern=Pattern(("routed",), prefix=("dense",)),
    ),
    # moonshotai/Kimi-Linear-48B-A3B, by the defaults of its class in transformers
    "kimi-linear-48b-a3b": replace(
        LLAMA,
        preset="kimi-linear-48b-a3b",
        layers=27,
        embed=2304,
        heads=32,
        mlp=9216,
        vocab=163840,
        position="none",
        mixer="kimi_delta",
        linear_attention=LinearAttentionConfig(heads=32, key_dim=128, value_dim=128),
        experts=ExpertsConfig(
            count=256, per_token=8, width=1024, shared=1, router="sigmoid", router_options={"scale": 2.446}
        ),
        kinds={
            "dense": {"experts": None},
            "routed": {},
            "attention": {"mixer": "attention", "latent_attention": {"kv_rank": 512, "norm_epsilon": 1e-6}},
        },
        pattern=Pattern((*["routed"] * 3, "attention"), prefix=("dense",), suffix=("routed",) * 2),
    ),
}
"""Every field of the model by preset name."""
