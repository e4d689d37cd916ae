"""A training step whose mixers pass their state on by a kernel, as XLA's GPU compiler makes it."""

import re
from collections import Counter

import pytest

from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from pallas_kernels.linear_attention import CHUNK
from tests.compiler.inspected import inspected, wide

LAYERS, HEADS, WIDTH, ROWS, TOKENS = 2, 2, 64, 2, 160
CHUNKS = -(-TOKENS // CHUNK)


@pytest.mark.long
@pytest.mark.parametrize(("mixer", "products"), [("gated_deltanet", 3), ("gla", 2)])
def test_the_kernels_are_in_the_step_and_their_products_are_counted(mixer: str, products: int):
    """A chunk has so many products with a state and one of its tokens with each other, and as many in the backward,
    before which the forward runs once more for the states."""
    linear = LinearAttentionConfig(heads=HEADS, key_dim=WIDTH, value_dim=WIDTH)
    config = wide(
        model={"layers": LAYERS, "mixer": mixer, "linear_attention": linear},
        attention={"linear_backend": "mosaic"},
        data={"sequence_length": TOKENS, "batch_size": ROWS},
        memory={"remat": "none"},
    )
    analysis, _ = inspected(config, "h100:1x1")
    each = 2 * ROWS * HEADS * CHUNKS * CHUNK * (products * WIDTH * WIDTH + CHUNK * WIDTH)
    runs: Counter[tuple[str, float]] = Counter()
    for cost in analysis.costs:
        if cost.flops and (name := re.search(r"linear_attention_(\w+)", cost.op.op_name)):
            runs[name[1], cost.flops / each] += int(cost.executions)
    assert runs == {("forward", 1): 2 * LAYERS, ("backward", 1): LAYERS}
