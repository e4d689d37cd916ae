"""Distillation: loss, divergence and gradients against the definition in float64, on any layout."""

from dataclasses import asdict, replace
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import LossConfig
from tests.reference import decoder64
from tests.reference.small import random_weights
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_equals_float64

CHOICES, TEMPERATURE, WEIGHT, VOCAB = 3, 2.0, 0.7, 61
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "split": {"parallel": {"fsdp": 2, "tensor": 2, "context": 2, "zero": 3}, "memory": {"loss_tiles": 3}},
    "microbatches": {"parallel": {"fsdp": 2, "tensor": 2, "microbatches": 2}},
    "stages that share the vocabulary": {
        "parallel": {"pipe": 2, "tensor": 2, "microbatches": 2, "pipe_ends": "shared"}
    },
    "tied": {"parallel": {"tensor": 4, "zero": 0}, "model": {"tied": True}},
}  # fmt: skip


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def rest(likely: np.ndarray) -> np.ndarray:
    """The log-probability of all tokens but these."""
    return np.log1p(-np.exp(likely).sum(-1))


def divergence(teacher: np.ndarray, model: np.ndarray) -> np.ndarray:
    """The Kullback-Leibler divergence of distributions over some tokens and the class of the others."""
    t, s = (np.concatenate([likely, rest(likely)[..., None]], -1) for likely in (teacher, model))
    return (np.exp(t) * (t - s)).sum(-1)


def slope(teacher: np.ndarray, model: np.ndarray) -> np.ndarray:
    """The derivative of `divergence` by the log-probabilities of the model, each as if it were free."""
    return np.exp(rest(teacher) - rest(model))[..., None] * np.exp(model) - np.exp(teacher)


def taught(shape: tuple[int, ...], choices: int, draws: np.random.Generator) -> dict[str, np.ndarray]:
    """The fields of a teacher of tokens in `shape` whose likeliest tokens are drawn."""
    logits = 2 * draws.standard_normal((*shape, VOCAB))
    tokens = np.argsort(-logits, axis=-1)[..., :choices].astype(np.int32)
    likely = np.take_along_axis(log_softmax(logits), tokens, -1).astype(np.float32)
    return {"teacher_tokens": tokens, "teacher_likely": likely}


def taught_batch(run: SmallRun) -> dict[str, np.ndarray]:
    """The first batch with a teacher; a third of the tokens is masked."""
    draws, batch = np.random.default_rng(0), run.rows(0)
    fields = taught(batch["tokens"].shape, CHOICES, draws)
    mask = batch["mask"] * (draws.random(batch["mask"].shape) < 2 / 3).astype(np.float32)
    return batch | fields | {"mask": mask}


def expected(weights: Any, options: dict[str, Any], batch: dict[str, np.ndarray]) -> tuple[dict[str, float], Any]:
    """Loss and divergence of a batch, and the loss's gradients, in float64."""
    logits, mask, tokens = decoder64.logits(weights, options, batch), batch["mask"], batch["teacher_tokens"]
    teacher = batch["teacher_likely"].astype(np.float64)
    tempered = np.take_along_axis(log_softmax(logits / TEMPERATURE), tokens, -1)
    labels = np.take_along_axis(log_softmax(logits), batch["labels"][..., None], -1)[..., 0]
    count, far = mask.sum(), (mask * divergence(teacher, tempered)).sum() / mask.sum()
    found = {"loss": -(1 - WEIGHT) * (mask * labels).sum() / count + WEIGHT * TEMPERATURE**2 * far, "divergence": far}
    pulls = -WEIGHT * TEMPERATURE**2 * mask[..., None] * slope(teacher, tempered) / count
    parts = [(options, batch["labels"], (1 - WEIGHT) * mask / count)]
    hot = options | {"logit_divisor": TEMPERATURE * options["logit_divisor"]}
    parts += [(hot, tokens[..., choice], pulls[..., choice]) for choice in range(CHOICES)]
    gradients = [
        decoder64.weighted_gradients(weights, divided, batch | {"labels": labels}, of_token)
        for divided, labels, of_token in parts
    ]
    return found, jax.tree.map(lambda *leaves: sum(leaves), *gradients)


def test_the_derivative_by_hand_is_that_of_the_definition():
    draws = np.random.default_rng(1)
    teacher, model = (log_softmax(draws.standard_normal((5, 8)))[:, :CHOICES] for _ in range(2))
    for choice in range(CHOICES):
        step = 1e-6 * np.eye(CHOICES)[choice]
        numeric = (divergence(teacher, model + step) - divergence(teacher, model - step)) / 2e-6
        np.testing.assert_allclose(slope(teacher, model)[:, choice], numeric, rtol=1e-6, atol=1e-9)


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_divergence_and_gradients_equal_float64(layout: str):
    sections = {"model": {"layers": 2, "vocab": VOCAB, "kv_heads": 4}} | LAYOUTS[layout]
    sections["model"] = {"layers": 2, "vocab": VOCAB, "kv_heads": 4} | sections["model"]
    loss = LossConfig(
        name="distill", reference="not opened", teacher_weight=WEIGHT, temperature=TEMPERATURE, top_k=CHOICES
    )
    run = SmallRun(replace(small(**sections), loss=loss))
    options = asdict(run.config.model)
    weights, batch = random_weights(options, padded_vocab=64), taught_batch(run)
    wanted, gradients = expected(weights, options, batch)

    assert_equals_float64(run, weights, batch, wanted, gradients)
