"""Bytes of activations: sums of named arrays, and the published closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxpar.config.plan import AxisSizes
from jaxpar.config.presets import PRESETS as MODELS
from jaxpar.config.schema import Config, DataConfig
from jaxpar.memory.closed_forms import CLOSED_FORMS
from jaxpar.memory.layer_shape import LayerShape, activation_bytes, layer_shape
from jaxpar.memory.remat import remat_map

LLAMA_65B = LayerShape(
    rows=1, sequence=8192, embed=8192, heads=64, kv_heads=64, head_dim=128, mlp=22016, gated=True, context=2, tensor=2
)
SHAPES = {
    "llama-65b": LLAMA_65B,
    "one device": replace(LLAMA_65B, context=1, tensor=1),
    "grouped": replace(LLAMA_65B, kv_heads=8),
    "fewer key heads than ranks": replace(LLAMA_65B, kv_heads=2, tensor=4),
    "not gated": replace(LLAMA_65B, gated=False, mlp=4 * 8192),
    "post norms": replace(LLAMA_65B, norm_placement="post"),
    "sandwich norms": replace(LLAMA_65B, norm_placement="sandwich"),
    "wide heads": replace(LLAMA_65B, heads=64, head_dim=192),
    "float32": replace(LLAMA_65B, item_bytes=4, rows=3),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("preset", CLOSED_FORMS)
def test_a_form_is_the_sum_of_what_its_preset_saves(preset: str, shape: LayerShape):
    sizes = activation_bytes(shape)
    kept = sum(sizes[name] for name, treatment in remat_map(preset, sizes).items() if treatment == "save")
    assert CLOSED_FORMS[preset](shape) == kept


@pytest.mark.parametrize(
    ("preset", "of_embed", "of_mlp", "lse"),
    [("none", 16, 8, 4), ("gemm_last", 12, 4, 4), ("selective", 14, 8, 0), ("full", 2, 0, 0)],
)
@pytest.mark.parametrize("kv_heads", [64, 8])
def test_the_published_forms(preset: str, of_embed: int, of_mlp: int, lse: int, kv_heads: int):
    """As they stand in the paper, in terms of S·b·h/t; grouped heads take 4(1 - k/a) off."""
    s, h, f, a, t = 4096, 8192, 22016, 64, 2
    grouped = 0 if preset == "full" else 4 * (1 - kv_heads / a)
    published = (of_embed + of_mlp * f / h - grouped) * s * h / t + lse * s * a / t
    assert CLOSED_FORMS[preset](replace(LLAMA_65B, kv_heads=kv_heads)) == published


@pytest.mark.parametrize(("model", "share"), [("llama3-8b", 0.4387), ("gpt3-175b", 0.3746)])
def test_gemm_last_keeps_this_much_less_than_everything(model: str, share: float):
    shape = layer_shape(Config(model=MODELS[model]), AxisSizes(), rows=1)
    assert 1 - CLOSED_FORMS["gemm_last"](shape) / CLOSED_FORMS["none"](shape) == pytest.approx(share, abs=1e-4)


def test_the_shape_of_a_configuration():
    config = Config(model=MODELS["llama3-8b"], data=DataConfig(sequence_length=8192))
    shape = layer_shape(config, AxisSizes(context=2, tensor=4), rows=3)
    assert (shape.tokens, shape.part_tokens) == (3 * 4096, 3 * 1024)
    assert (shape.query_width, shape.kv_width, shape.hidden_width) == (1024, 256, 3584)
    assert activation_bytes(shape)["attention_lse"] == 3 * 4096 * 8 * 4


@pytest.mark.parametrize("window", [None, 1, 3, 7, 100])
def test_keys_per_query_counts_what_a_causal_mask_keeps(window: int | None):
    shape = replace(LLAMA_65B, sequence=7, window=window, context=1)
    seen = [min(slot + 1, window or 7) for slot in range(7)]
    assert shape.keys_per_query == sum(seen) / 7
