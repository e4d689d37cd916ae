"""Model FLOPs and MFU, against shapes written out by hand."""

from dataclasses import replace

import pytest

from jaxpar.config.schema import LoraConfig, ModelConfig
from jaxpar.layers.counting import factor_parameters, layer_matmul_parameters, matmul_parameters, parameter_count
from jaxpar.layers.declaration.adaptation import adaptation
from jaxpar.model.flops import flops_per_step, mfu

GPT2 = ModelConfig(
    layers=12, embed=768, heads=12, mlp=3072, activation="gelu", norm="layernorm", position="learned",
    attention_bias=True, mlp_bias=True, tied=True,
)  # fmt: skip
LLAMA3_8B = ModelConfig(layers=32, embed=4096, heads=32, kv_heads=8, head_dim=128, mlp=14336, activation="swiglu")


def causal_pairs(length: int) -> int:
    return length * (length + 1) // 2


def test_gpt2_counts_its_matrices_and_its_tied_head_once() -> None:
    attention = 4 * 768 * 768  # query, key, value, output
    mlp = 2 * 768 * 3072  # up, down
    assert layer_matmul_parameters(GPT2) == attention + mlp == 7_077_888
    assert matmul_parameters(GPT2, vocab=50257) == 12 * 7_077_888 + 768 * 50257 == 123_532_032


def test_llama3_8b_counts_everything_but_norms_and_the_embedding() -> None:
    attention = 4096 * (4096 + 1024 + 1024) + 4096 * 4096
    mlp = 3 * 4096 * 14336
    assert layer_matmul_parameters(LLAMA3_8B) == attention + mlp == 218_103_808
    norms = (2 * 32 + 1) * 4096
    published = 8_030_261_248  # parameters of the released weights
    assert matmul_parameters(LLAMA3_8B, vocab=128256) == published - norms - 128256 * 4096 == 7_504_658_432


def test_flops_of_a_gpt2_step() -> None:
    rows, length = 8, 1024
    pairs = rows * causal_pairs(length)
    assert pairs == 4_198_400
    dense = 6 * 123_532_032 * 8192
    attention = 12 * 12 * 768 * 4_198_400  # 12 x layers x (heads * head_dim) x pairs
    assert flops_per_step(GPT2, tokens=rows * length, pairs={None: pairs}, vocab=50257) == dense + attention


def test_flops_of_a_llama3_8b_step_with_grouped_queries_follow_the_query_heads() -> None:
    pairs = causal_pairs(8192)
    expected = 6 * 7_504_658_432 * 8192 + 12 * 32 * 32 * 128 * 33_558_528
    assert flops_per_step(LLAMA3_8B, tokens=8192, pairs={None: pairs}, vocab=128256) == expected


def test_frozen_weights_ask_for_no_gradients_of_their_own_and_factors_for_theirs() -> None:
    """Rank 8 beside query [4096, 4096] and value [4096, 1024] of 32 layers: 8 (8192 + 5120) each."""
    lora = LoraConfig(rank=8, targets=("query", "value"))
    factors = 32 * 8 * (8192 + 5120)
    assert factor_parameters(LLAMA3_8B, adaptation(lora)) == factors == 3_407_872
    attention = 12 * 32 * 32 * 128 * causal_pairs(8192)
    found = flops_per_step(LLAMA3_8B, 8192, {None: causal_pairs(8192)}, 128256, adaptation(lora))
    assert found == (4 * 7_504_658_432 + 6 * factors) * 8192 + attention


def test_a_product_of_two_counts_its_factors() -> None:
    """Up [768, 3072] at rank 100, and output [768, 768] at rank 50, in the place of the whole matrices."""
    low_rank = replace(GPT2, low_rank={"up": 100, "output": 50})
    layer = 3 * 768 * 768 + 50 * (768 + 768) + 768 * 3072 + 100 * (768 + 3072)
    assert layer_matmul_parameters(low_rank) == layer == 4_589_568
    matmuls = 12 * layer + 768 * 50257
    attention = 12 * 12 * 768 * causal_pairs(1024)
    assert flops_per_step(low_rank, 1024, {None: causal_pairs(1024)}, 50257) == 6 * matmuls * 1024 + attention
    whole, found = (parameter_count(replace(model, vocab=50257), padded=False) for model in (GPT2, low_rank))
    assert whole - found == 12 * (7_077_888 - layer)


def test_mfu_divides_by_every_devices_peak() -> None:
    assert mfu(flops=4 * 989.4e12, seconds=2.0, devices=8, peak=989.4e12) == pytest.approx(0.25)
