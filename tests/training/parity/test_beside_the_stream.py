"""Inputs of layers, and keys that layers share, are carried beside one or several residual streams: float64's numbers
everywhere."""

from collections import Counter
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config.kinds import kind_models, layer_kinds
from jaxpar.config.mappings.residual import AltUpConfig, PerLayerEmbeddings
from jaxpar.config.schema.model import Pattern
from tests.goldens.loading import options_of
from tests.nonzero_gradients import moved_weights, nonzero_gradients
from tests.reference import layers64
from tests.reference.options import spelled_out
from tests.short_documents import into_documents
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_close

WIDE: dict[str, Any] = {
    "head_dim": 16, "kv_heads": 1, "rope": {"base": 100.0, "partial": 0.25, "scaling": "proportional"},
}  # fmt: skip
KINDS: dict[str, Any] = {
    "local": {"window": 5},
    "wide": WIDE | {"keys_as_values": True, "attention_bias": "qkv"},
    "sharing": {"window": 5, "keys_of": "local", "mlp": 64},
    "wide_sharing": WIDE | {"keys_of": "wide", "norm_placement": "sandwich"},
}
MODEL: dict[str, Any] = {
    "layers": 7,
    "kv_heads": 2,
    "head_dim": 8,
    "qk_norm": True,
    "value_norm": True,
    "layer_scale": True,
    "norm_epsilon": 1e-2,
    "per_layer_embeddings": PerLayerEmbeddings(width=4, vocab=40),
    "kinds": KINDS,
    "pattern": Pattern(prefix=("local", "wide", "local"), unit=("sharing", "wide_sharing")),
}
"""Two layers make keys of `local`, of which the second's are shared."""
SEVERAL: dict[str, Any] = MODEL | {
    "altup": AltUpConfig(3, 1), "laurel_rank": 4, "activation": "geglu",
    "kinds": {name: own | ({"activation_sparsity": 0.6} if "wide" in name else {}) for name, own in KINDS.items()},
}  # fmt: skip
"""The same beside three streams, with learned residuals, and sparse gates in some layers (Gemma 3n)."""
MODELS = {"one": MODEL, "several": SEVERAL}

LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "one-device": {"parallel": {"fsdp": 1}},
    "fsdp-context-tensor": {"parallel": {"fsdp": 2, "context": 2, "tensor": 2, "zero": 3}},
    "tensor4-zero1": {"parallel": {"tensor": 4, "fsdp": 2, "zero": 1}, "memory": {"remat": "full"}},
    "pipe-1f1b": {"parallel": {"pipe": 2, "fsdp": 2, "tensor": 2, "microbatches": 4}},
    "pipe-zb-h1": {"parallel": {"pipe": 2, "context": 2, "microbatches": 4, "schedule": "zb-h1"}},
    "pipe-interleaved": {
        "parallel": {"pipe": 2, "fsdp": 2, "microbatches": 4, "schedule": "interleaved", "virtual_stages": 2},
        "memory": {"remat": {"preset": "full", "layer_input": "offload"}},
    },
}


@cache
def reference(streams: str) -> tuple[Any, float, Any]:
    """Initial weights, and the loss and the gradients of float64, by layer."""
    run = SmallRun(small(model=MODELS[streams], memory={"remat": "none"}))
    initial = run.by_layer(run.step.residency.initial_state().master)
    weights, model = moved_weights(initial), run.config.model
    models, turns, layers = kind_models(model), Counter[str](), []
    for kind in layer_kinds(model):
        own = jax.tree.map(lambda stack, turn=turns[kind]: stack[turn], weights["layers"][kind])
        layers.append((own, spelled_out(options_of(models[kind])) | {"kind": kind}))
        turns[kind] += 1
    outside = {name: leaf for name, leaf in weights.items() if name != "layers"}
    loss, (of_outside, of_layers) = layers64.loss_and_gradients(outside, layers, into_documents(run.rows(0), seed=7))
    kinds = layer_kinds(model)
    of_kind = {kind: [one for one, name in zip(of_layers, kinds, strict=True) if name == kind] for kind in models}
    by_kind = {kind: jax.tree.map(lambda *rows: np.stack(rows), *rows) for kind, rows in of_kind.items()}
    return initial, loss, of_outside | {"layers": by_kind}


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("streams", MODELS)
def test_loss_and_gradients_equal_float64(streams: str, layout: str):
    initial, loss, gradients = reference(streams)
    found_loss, found = nonzero_gradients(SmallRun(small(model=MODELS[streams], **LAYOUTS[layout])), initial)
    assert_close(found_loss, loss, found, gradients)
