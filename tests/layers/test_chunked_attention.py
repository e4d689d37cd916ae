"""Chunked attention and its temperature: what is refused, the pairs that count as work, and generation."""

from typing import Any

import numpy as np
import pytest

from jaxpar.config.counting import Chunk
from jaxpar.config.mappings.attention_temperature import AttentionTemperature
from jaxpar.config.schema.model import Pattern
from jaxpar.memory.layer_shape import mean_keys
from jaxpar.model.flops import causal_pairs, seen_pairs
from tests.decoding import assert_decodes
from tests.sentences import refused
from tests.small_run import SmallRun, small

KINDS: dict[str, Any] = {
    "qk_norm": "unweighted", "layers": 2, "pattern": Pattern(("chunked", "wide")),
    "kinds": {
        "chunked": {"chunk": 11},
        "wide": {"position": "none", "qk_norm": False, "attention_temperature": {"floor": 16, "scale": 0.4}},
    },
}  # fmt: skip


def test_the_pairs_of_chunks_are_those_within_documents_and_chunks():
    segments = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1, 1, 1, 1]], np.int32)
    positions = np.array([[0, 1, 2, 3, 4, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5, 6, 7, 8]], np.int32)
    model = small(model=KINDS | {"kinds": {**KINDS["kinds"], "chunked": {"chunk": 3}}}).model
    found = seen_pairs(model, {"segments": segments, "positions": positions}, packed=True)
    before = np.tri(9, dtype=bool)
    alike = (segments[:, :, None] == segments[:, None]) & (segments > 0)[:, None] & before
    inside = alike & (positions[:, :, None] // 3 == positions[:, None] // 3)
    assert found == {Chunk(3): inside.sum(), None: alike.sum()}
    assert causal_pairs(model, 18, 9)[Chunk(3)] == 2 * inside[1].sum()
    assert mean_keys(8, Chunk(3)) * 8 == np.sum(inside[1][:8, :8])


def test_what_chunks_and_temperatures_cannot_be_combined_with_is_refused():
    with refused("model.chunk: 8", "model.window: 16", "one of both"):
        SmallRun(small(model={"chunk": 8, "window": 16}))
    with refused("model.chunk: 8", "mamba2"):
        SmallRun(small(model={"chunk": 8, "mixer": "mamba2"}))
    with refused("model.attention_temperature", "gla"):
        SmallRun(small(model={"attention_temperature": AttentionTemperature(8), "mixer": "gla"}))


@pytest.mark.matrix(quick=(), ci=1)
@pytest.mark.parametrize("parallel", [{}, {"context": 2, "tensor": 2}], ids=["one device", "context and tensor"])
def test_decode_equals_the_parallel_form_for_200_tokens(parallel: dict[str, Any]):
    assert_decodes(KINDS, parallel)
