"""The pattern of SpikingBrain-76B: gated linear attention, windows and full attention, experts in most layers."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config.kinds import layer_kinds
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.config.schema.model import Pattern
from jaxpar.interop.mapping.layer_packing import layer_models
from tests.goldens.loading import options_of
from tests.layers.linear_attention.test_mixers import shaken
from tests.model.test_goldens import TOLERANCE, logits
from tests.reference import layers64
from tests.reference.decoder64 import plain_batch
from tests.reference.options import spelled_out
from tests.small_run import SmallRun, small

ROWS, LENGTH = 2, 32
MODEL: dict[str, Any] = {
    "layers": 6, "attention_bias": "qkv", "norm_epsilon": 1e-2,
    "experts": ExpertsConfig(4, per_token=1, width=12, shared=1),
    "linear_attention": LinearAttentionConfig(key_heads=2), "kv_heads": 2,
    "kinds": {
        "state": {"mixer": "relu_gla"}, "dense": {"mixer": "relu_gla", "experts": None}, "local": {"window": 5},
        "local_dense": {"window": 5, "experts": None}, "full": {},
    },
    "pattern": Pattern(("state", "local"), prefix=("dense", "local_dense"), suffix=("state", "full")),
}  # fmt: skip


def layer_trees(weights: Any, kinds: tuple[str, ...]) -> list[Any]:
    """The weights of each layer, from stacks of the layers of each kind."""
    at = [kinds[:layer].count(kind) for layer, kind in enumerate(kinds)]
    row = lambda kind, index: jax.tree.map(lambda leaf: leaf[index], weights["layers"][kind])
    return [row(kind, index) for kind, index in zip(kinds, at, strict=True)]


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize(
    "parallel", [{}, {"context": 2, "tensor": 2, "expert": 2}], ids=["one device", "context, tensor and expert"]
)
def test_logits_of_its_pattern_equal_float64(parallel: dict[str, Any]):
    data = {"batch_size": ROWS, "sequence_length": LENGTH}
    run = SmallRun(small(model=MODEL, parallel=parallel, data=data))
    model, master = run.config.model, run.step.residency.initial_state().master
    assert model.vocab is not None
    weights = shaken(master)
    placed = jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), weights, master)
    batch = plain_batch(np.random.default_rng(0).integers(0, model.vocab, (ROWS, LENGTH)).astype(np.int32))
    found = np.asarray(logits(run.step)(placed, run.place(batch)))[..., : model.vocab]
    options = [spelled_out(options_of(one)) for one in layer_models(model)]
    layers = list(zip(layer_trees(weights, layer_kinds(model)), options, strict=True))
    outside = {name: tree for name, tree in weights.items() if name != "layers"}
    wanted = layers64.logits(outside, layers, batch)[..., : model.vocab]
    assert np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max()
