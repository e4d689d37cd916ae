"""The presets are the published models: their parameter counts say so."""

import json
from dataclasses import replace

import pytest

from jaxpar.config import Config, DataConfig, LossConfig, ModelConfig
from jaxpar.config.presets import PRESETS
from jaxpar.config.schema.model import Pattern
from jaxpar.layers.counting import matmul_parameters, parameter_count
from jaxpar.layout.checks.validate import validate
from tests.goldens.loading import FOLDER
from tests.sentences import refused

PUBLISHED = json.loads((FOLDER / "presets.json").read_text())
"""The released checkpoints' own totals, tied heads counted once, and `config.json` but for what has no effect."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_as_many_parameters_as_the_released_checkpoint(name):
    assert parameter_count(PRESETS[name], padded=False) == PUBLISHED[name]["parameters"]


ACTIVE = {"mixtral-8x7b": 12.9, "qwen3-30b-a3b": 3.3, "qwen3-235b-a22b": 22, "olmoe-1b-7b": 1.3} | {
    "deepseek-v3": 37, "kimi-k2": 32, "qwen1.5-moe-a2.7b": 2.7, "gpt-oss-20b": 3.61, "gpt-oss-120b": 5.13,
}  # fmt: skip
"""Billions of weights that a token uses, as published: with those of the embedding, but for gpt-oss and Kimi K2."""


@pytest.mark.parametrize("name", ACTIVE)
def test_a_token_uses_as_many_weights_of_a_model_with_experts_as_published(name):
    model = PRESETS[name]
    assert model.vocab is not None
    active = matmul_parameters(model, model.vocab) + (
        0 if name.startswith(("gpt-oss", "kimi")) else model.vocab * model.embed
    )
    assert active / 1e9 == pytest.approx(ACTIVE[name], rel=0.02)


def test_a_token_uses_as_many_weights_of_deepseek_v2_lite_as_published_without_its_embedding():
    assert matmul_parameters(PRESETS["deepseek-v2-lite"], 102400) / 1e9 == pytest.approx(2.4, abs=0.06)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_valid_and_carries_its_name(name):
    assert PRESETS[name].preset == name
    validate(config_with(PRESETS[name]))


def config_with(model: ModelConfig) -> Config:
    """A configuration of a model, whose loss is that of masked tokens if it is bidirectional."""
    config = Config(model=model)
    if model.causal:
        return config
    return replace(config, loss=LossConfig(name="masked", mask_token=3), data=DataConfig(sequence_length=512))


def test_padding_adds_rows_to_the_embedding_and_columns_to_an_untied_head():
    model = ModelConfig(vocab=61, vocab_multiple=16, embed=32, heads=4)  # 61 -> 64
    assert parameter_count(model, True) - parameter_count(model, False) == 2 * 3 * 32
    tied = replace(model, tied=True)
    assert parameter_count(tied, True) - parameter_count(tied, False) == 3 * 32


def test_every_optional_weight_is_counted():
    """Against the weight tree written out by hand for L=2, E=8, H=4, K=2, D=2, F=12, V=16, P=5."""
    model = ModelConfig(
        layers=2, embed=8, heads=4, kv_heads=2, head_dim=2, mlp=12, vocab=16, vocab_multiple=1, norm="layernorm",
        position="learned", max_positions=5, qk_norm=True, attention_bias=True, mlp_bias=True,
    )  # fmt: skip
    attention = 8 * 8 + 8 * 4 + 8 * 4 + 8 * 8 + (8 + 4 + 4 + 8) + (2 + 2)
    feed_forward = 3 * 8 * 12 + (12 + 12 + 8)
    layer = attention + feed_forward + 2 * (8 + 8)
    assert parameter_count(model, False) == 16 * 8 + 5 * 8 + 2 * layer + (8 + 8) + 8 * 16
    without_out = replace(model, attention_bias="qkv")
    assert parameter_count(model, False) - parameter_count(without_out, False) == 2 * 8
    over_projections = replace(model, qk_norm="projection")
    assert parameter_count(over_projections, False) - parameter_count(model, False) == 2 * (8 + 4 - 2 - 2)
    assert parameter_count(replace(model, norm_placement="post"), False) == parameter_count(model, False)
    sandwich = replace(model, norm_placement="sandwich")
    assert parameter_count(sandwich, False) - parameter_count(model, False) == 2 * 2 * (8 + 8)


def test_each_kind_of_layer_is_counted_as_often_as_it_comes():
    """E=8, three layers of F=12 and two of F=4, the latter without a gate."""
    kinds = {"wide": {"mlp": 12}, "narrow": {"mlp": 4, "activation": "gelu"}}
    base = ModelConfig(layers=5, embed=8, heads=4, vocab=16, vocab_multiple=1)
    model = replace(base, kinds=kinds, pattern=Pattern(("wide", "narrow"), prefix=("wide",)))
    attention_and_norms = 4 * 8 * 8 + 2 * 8
    layers = 5 * attention_and_norms + 3 * (3 * 8 * 12) + 2 * (2 * 8 * 4)
    assert parameter_count(model, False) == 2 * 16 * 8 + layers + 8


def test_without_a_vocabulary_there_is_no_count():
    with refused("model.vocab", "null", "data source"):
        parameter_count(ModelConfig(), padded=True)
