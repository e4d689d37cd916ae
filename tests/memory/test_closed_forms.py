"""Bytes of activations: sums of named arrays, and the published closed forms."""

import pytest

from jaxpar.config.plan import AxisSizes
from jaxpar.config.presets import PRESETS as MODELS
from jaxpar.config.schema import Config, DataConfig
from jaxpar.memory.closed_forms import CLOSED_FORMS
from jaxpar.memory.layer_shape import LayerShape, activation_bytes
from tests.memory.shapes import changed, layer_shape, shape_of

LLAMA_65B = shape_of(
    rows=1, sequence=8192, embed=8192, heads=64, kv_heads=64, head_dim=128, mlp=22016, context=2, tensor=2
)
SHAPES = {
    "llama-65b": LLAMA_65B,
    "one device": changed(LLAMA_65B, context=1, tensor=1),
    "grouped": changed(LLAMA_65B, kv_heads=8),
    "fewer key heads than ranks": changed(LLAMA_65B, kv_heads=2, tensor=4),
    "not gated": changed(LLAMA_65B, activation="gelu", mlp=4 * 8192),
    "post norms": changed(LLAMA_65B, norm_placement="post"),
    "sandwich norms": changed(LLAMA_65B, norm_placement="sandwich"),
    "wide heads": changed(LLAMA_65B, heads=64, head_dim=192),
    "float32": changed(LLAMA_65B, item_bytes=4, rows=3),
}


COUNTS = {
    # arrays of the residual stream with norms before, behind, and on both sides; queries; keys and values; log-sum-exp
    "none": ({"pre": 4, "post": 4, "sandwich": 5}, 2, 2, 1),
    "gemm_last": ({"pre": 2, "post": 3, "sandwich": 3}, 2, 2, 1),
    "selective": ({"pre": 4, "post": 4, "sandwich": 5}, 1, 2, 0),
    "full": ({"pre": 1, "post": 1, "sandwich": 1}, 0, 0, 0),
}
HIDDEN = {"none": (4, 2), "gemm_last": (2, 1), "selective": (4, 2), "full": (0, 0)}
"""Hidden activations with a gate and without."""


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("preset", CLOSED_FORMS)
def test_a_form_is_the_sum_of_what_its_preset_saves(preset: str, shape: LayerShape):
    """Counted by hand in terms of S, b, h, f, a, k and d, as in the table of `jaxpar.memory.closed_forms`."""
    model, ranks = shape.model, shape.tensor
    (between, query, keys, lse), width = COUNTS[preset], model.head_dim or 0
    tokens = shape.rows * shape.sequence // shape.context
    hidden = HIDDEN[preset][model.activation == "gelu"]
    numbers = between[model.norm_placement] * model.embed + query * model.heads * width + hidden * model.mlp
    numbers += keys * width * max(model.kv_heads or 0, ranks)
    assert CLOSED_FORMS[preset](shape) == tokens * (shape.item_bytes * numbers + 4 * lse * model.heads) // ranks


def test_the_shape_of_a_configuration():
    config = Config(model=MODELS["llama3-8b"], data=DataConfig(sequence_length=8192))
    shape = layer_shape(config, AxisSizes(context=2, tensor=4), rows=3)
    assert (shape.tokens, shape.part_tokens) == (3 * 4096, 3 * 1024)
    widths = [shape.width(dims) for dims in (("heads", "head_dim"), ("kv_heads", "head_dim"), ("mlp",))]
    assert widths == [1024, 256, 3584]
    assert activation_bytes(shape)["attention_lse"] == 3 * 4096 * 8 * 4


@pytest.mark.parametrize("window", [None, 1, 3, 7, 100])
def test_keys_per_query_counts_what_a_causal_mask_keeps(window: int | None):
    shape = changed(LLAMA_65B, sequence=7, window=window, context=1)
    seen = [min(slot + 1, window or 7) for slot in range(7)]
    assert shape.keys_per_query == sum(seen) / 7
