"""Bidirectional models: masked loss and gradients against float64, on any layout, with windows and documents."""

from dataclasses import asdict, replace
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import LossConfig
from jaxpar.config.kinds import layer_kinds
from jaxpar.config.schema.model import Pattern
from jaxpar.data.masked import masked_data
from tests.given_weights import state_with
from tests.reference import decoder64
from tests.reference.small import random_weights
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_close

LOSS = LossConfig(name="masked", rate=0.3, mask_token=63)
LOCAL = {"kinds": {"local": {"window": 5}, "global": {}}, "pattern": Pattern(("global", "local"))}
BERT = {
    "norm": "layernorm", "norm_placement": "stream", "position": "learned", "max_positions": 64, "kv_heads": 8,
    "activation": "exact_gelu", "mlp_bias": True, "attention_bias": True, "tied": True, "head_transform": True,
    "head_bias": True, "token_types": 2,
}  # fmt: skip
MODERN_BERT = {
    "norm": "unbiased_layernorm", "activation": "exact_geglu", "tied": True, "head_transform": True,
    "head_bias": True, "kinds": {"first": {"norm_placement": "stream_mixer"}, "local": {"window": 5}},
    "pattern": Pattern(prefix=("first",), unit=("local",)), "kv_heads": 8,
}  # fmt: skip
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "split": {"parallel": {"fsdp": 2, "tensor": 2, "context": 2, "zero": 3}, "model": LOCAL},
    "ring": {"parallel": {"context": 4, "context_strategy": "ring", "context_order": "contiguous"}, "model": LOCAL},
    "zigzag ring": {"parallel": {"context": 4, "context_strategy": "ring", "context_order": "zigzag"}},
    "ulysses": {"parallel": {"context": 4, "context_strategy": "ulysses"}, "model": LOCAL},
    "usp": {"parallel": {"context": 4, "context_strategy": "usp", "ulysses": 2}},
    "gathered": {"parallel": {"context": 4, "context_strategy": "allgather"}, "model": {"window": 7}},
    "whole rows": {"parallel": {"fsdp": 2, "microbatches": 2}, "data": {"packed": False}},
    "bert": {"parallel": {"fsdp": 2, "tensor": 2, "context": 2, "zero": 3}, "model": BERT},
    "modernbert": {"parallel": {"tensor": 2, "context": 2}, "model": MODERN_BERT, "memory": {"loss_tiles": 3}},
    "bert in stages": {
        "parallel": {"pipe": 2, "tensor": 2, "microbatches": 2, "pipe_ends": "shared"},
        "model": BERT | {"tied": False},
    },
    "stages": {"parallel": {"pipe": 2, "context": 2, "microbatches": 2}},
}  # fmt: skip


def by_kind(tree: Any, kinds: tuple[str, ...]) -> Any:
    """A tree of the reference with its layers in stacks of their kinds."""
    stacked = tree["layers"]["all"]
    rows = {kind: np.array([layer for layer, own in enumerate(kinds) if own == kind]) for kind in kinds}
    return tree | {
        "layers": {kind: jax.tree.map(lambda leaf, own=own: leaf[own], stacked) for kind, own in rows.items()}
    }


@pytest.mark.matrix(quick=("ring",), ci=2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_masked_loss_and_gradients_equal_float64(layout: str):
    sections = LAYOUTS[layout]
    model = {"layers": 2, "kv_heads": 4, "causal": False} | sections.get("model", {})
    run = SmallRun(replace(small(**sections | {"model": model}), loss=LOSS))
    run.data = masked_data(run.config, run.data)
    options = asdict(run.config.model)
    weights, batch = random_weights(options, padded_vocab=64, positions=options["max_positions"]), run.rows(0)
    assert 0 < batch["mask"].mean() < 0.5
    wanted, gradients = decoder64.loss_and_gradients(weights, options, batch)
    causal = decoder64.loss(weights, options | {"causal": True}, batch)
    assert abs(causal - wanted) > 1e-3, "the other direction matters"

    kinds = layer_kinds(run.config.model)
    weights, gradients = by_kind(weights, kinds), by_kind(gradients, kinds)
    state = state_with(run.step, run.by_row(weights) if run.config.parallel.pipe > 1 else weights)
    loss, found = run.step.gradients(state, run.place(batch))
    found = run.by_layer(found)
    if options["position"] == "learned":  # Zero but for rounding: it adds the same to all scores of a query.
        largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradients))
        assert np.abs(found["layers"]["all"]["attention"].pop("key_bias")).max() <= 1e-6 * largest
        gradients["layers"]["all"]["attention"].pop("key_bias")
    assert_close(loss, wanted, found, gradients)
