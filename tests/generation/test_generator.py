"""Generation gives the tokens and the log-probabilities of the training step's forward, on any layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxpar.generation.generator import Generator
from tests.given_weights import as_decoder, place
from tests.goldens.loading import NAMES, load
from tests.model.test_goldens import logits
from tests.reference.decoder64 import plain_batch
from tests.small_run import SmallRun, small

TOLERANCE = 1e-5
LENGTHS, NEW = (3, 17, 8), 20
LAYOUTS: dict[str, dict[str, Any]] = {
    "one_device": {},
    "split": {"fsdp": 2, "context": 2, "tensor": 2},
    "context4": {"context": 4, "context_strategy": "ring", "context_order": "zigzag"},
    "tensor4": {"tensor": 4, "replica": 2, "zero": 2},
}


def model_of(name: str) -> tuple[Any, dict[str, Any]]:
    weights, options, _, _ = load(name, vocab_multiple=16)
    weights, options = as_decoder(weights, options)
    return weights, {"vocab_multiple": 16, "kv_heads": None} | options


def prompts(vocab: int) -> list[list[int]]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, vocab, length).tolist() for length in LENGTHS]


def run_of(options: dict[str, Any], parallel: dict[str, Any], length: int = 64, rows: int = 8) -> SmallRun:
    data = {"batch_size": rows, "sequence_length": length}
    return SmallRun(small(model=options, parallel=parallel, data=data))


def log_probabilities(run: SmallRun, weights: Any, rows: list[list[int]]) -> np.ndarray:
    """[row, index, token] by the training step's forward."""
    tokens = np.zeros((8, 64), np.int32)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
    found = np.asarray(logits(run.step)(weights, run.place(plain_batch(tokens))), np.float64)
    found -= found.max(axis=-1, keepdims=True)
    return found - np.log(np.exp(found).sum(axis=-1, keepdims=True))


@pytest.mark.matrix(quick=("llama-split",), ci=4)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_the_likeliest_of_the_training_forward(name: str, layout: str):
    plain, options = model_of(name)
    run = run_of(options, LAYOUTS[layout])
    weights = place(run.step, plain)
    given = prompts(options["vocab"])
    generator = Generator(run.config, run.step.mesh, weights)
    found = generator.continued(given, NEW)
    reference = run_of(options, {})
    by_training = log_probabilities(
        reference, place(reference.step, plain), [[*a, *b.tokens.tolist()] for a, b in zip(given, found, strict=True)]
    )
    for row, (prompt, own) in enumerate(zip(given, found, strict=True)):
        assert len(own.tokens) == NEW and not own.ended
        after = by_training[row, len(prompt) - 1 : len(prompt) - 1 + NEW]
        assert after.argmax(axis=-1).tolist() == own.tokens.tolist()
        np.testing.assert_allclose(own.log_probabilities, after.max(axis=-1), atol=TOLERANCE, rtol=TOLERANCE)
