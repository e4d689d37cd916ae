"""Attention weights are those that the trained model attends with."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.training.run.attention_maps import attention_weights
from tests.given_weights import state_with
from tests.reference import decoder64, norms64
from tests.reference.options import complete
from tests.reference.small import random_weights
from tests.sentences import refused
from tests.training.runs import make_run, run_config

TEXT = np.random.default_rng(3).permutation(61)[:20]
"""No token twice: the reference's trick needs inputs of attention that are independent."""

GPT2 = {
    "norm": "layernorm", "position": "learned", "max_positions": 32, "activation": "gelu", "attention_bias": True,
    "mlp_bias": True,
}  # fmt: skip
SHAPE = {"layers": 2, "vocab": 61, "kv_heads": 2}


def expected(weights: Any, options: Any, batch: Any) -> Any:
    """Weights [heads, query, key] of the second layer of the float64 decoder.

    It does not hand them out. But attention with values that are unit vectors, one per token, gives them.
    """
    first, second = (jax.tree.map(lambda stack, n=n: stack[n], weights["layers"]["all"]) for n in (0, 1))
    x = weights["embedding"]["tokens"][batch["tokens"]]
    if options["position"] == "learned":
        x = x + weights["embedding"]["positions"][batch["positions"]]
    x = x + decoder64.attention(norms64.norm(x, first, "attention_norm", options), first["attention"], options, batch)
    x = x + decoder64.feed_forward(norms64.norm(x, first, "mlp_norm", options), first["mlp"], options)
    h, attention = norms64.norm(x, second, "attention_norm", options), dict(second["attention"])
    length, heads = h.shape[1], options["heads"]
    units = jnp.linalg.pinv(h[0])  # h[0] @ units is the identity
    attention["value"] = jnp.repeat(units[:, None], options["kv_heads"], axis=1)
    if options["attention_bias"]:
        attention |= {"value_bias": 0.0, "output_bias": 0.0}
    of_head = [jnp.zeros((heads, length, length)).at[head].set(jnp.eye(length)) for head in range(heads)]
    return jnp.stack([decoder64.attention(h, attention | {"output": w}, options, batch)[0] for w in of_head])


@pytest.mark.parametrize(
    ("model", "layout"),
    [({"window": 6, "attention_softcap": 2.0, "qk_norm": True}, {"fsdp": 2, "tensor": 2}), (GPT2, {})],
)
def test_they_are_the_float64_decoders(tmp_path: Path, model: dict[str, Any], layout: dict[str, int]) -> None:
    trainer = make_run(run_config(tmp_path, 5, model=SHAPE | model, parallel=layout))
    options = complete(asdict(trainer.config.model))
    weights = random_weights(options, padded_vocab=64, positions=32)
    trainer.state = state_with(trainer.functions, weights)
    places = np.arange(len(TEXT))[None]
    batch = dict.fromkeys(("labels", "mask"), np.zeros_like(places)) | {
        "tokens": TEXT[None], "segments": np.ones_like(places), "positions": places, "indices": places,
    }  # fmt: skip
    found = attention_weights(trainer, TEXT, 1)
    assert found.shape == (8, 20, 20)
    assert np.abs(found - decoder64._call(expected, weights, options, batch)).max() < 1e-5
    np.testing.assert_allclose(found.sum(axis=-1), 1.0, rtol=1e-5)
    assert not np.triu(found, 1).any(), "nobody looks ahead"


@pytest.mark.long
def test_they_do_not_depend_on_where_the_layers_lie(tmp_path: Path) -> None:
    found = []
    for layout in ({}, {"pipe": 2, "schedule": "interleaved", "virtual_stages": 2, "microbatches": 4}):
        trainer = make_run(run_config(tmp_path, 5, model=SHAPE | {"layers": 4}, parallel=layout))
        found.append(attention_weights(trainer, TEXT, 2))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("tokens", "layer", "parts"),
    [
        (TEXT, 2, ("layer", "expected 0 to 1", "got 2")),
        (TEXT, -1, ("layer", "expected 0 to 1", "got -1")),
        (TEXT[:0], 0, ("tokens", "1 to data.sequence_length (32)", "got 0")),
        (np.zeros(33, int), 0, ("tokens", "1 to data.sequence_length (32)", "got 33")),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(
    tmp_path: Path, tokens: np.ndarray, layer: int, parts: tuple[str, ...]
) -> None:
    trainer = make_run(run_config(tmp_path, 5, model=SHAPE))
    with refused(*parts):
        attention_weights(trainer, tokens, layer)
