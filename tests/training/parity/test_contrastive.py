"""The contrastive term of masked spans against float64, on any layout, in packed rows."""

from dataclasses import asdict, replace
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config.mappings.contrastive import ContrastiveConfig
from jaxpar.data.masked import masked_data
from jaxpar.objectives.contrastive import negatives, row_terms
from tests.given_weights import state_with
from tests.reference import contrastive64
from tests.reference.contrastive64 import Triple
from tests.reference.small import random_weights
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_close
from tests.training.parity.test_bidirectional import BERT, LOSS

CONTRASTIVE = ContrastiveConfig(weight=0.7, temperature=0.5, most=6)
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "one device": {"parallel": {"fsdp": 1}},
    "split": {"parallel": {"fsdp": 2, "tensor": 2, "context": 2, "zero": 3}},
    "zigzag ring": {"parallel": {"context": 4, "context_strategy": "ring", "context_order": "zigzag"}},
    "microbatches": {"parallel": {"fsdp": 2, "tensor": 2, "microbatches": 2}, "memory": {"loss_tiles": 3}},
    "stages": {"parallel": {"pipe": 2, "context": 2, "microbatches": 2}},
    "shared stages": {
        "parallel": {"pipe": 2, "tensor": 2, "microbatches": 2, "pipe_ends": "shared"},
        "model": BERT | {"tied": False, "position": "rope", "attention_bias": False},
    },
}  # fmt: skip


def triples_of(batch: dict[str, np.ndarray]) -> list[list[Triple]]:
    """Triples within documents of each row: some with one head, one tail or one span for both, none in the last row."""
    draw, every = np.random.default_rng(4), []
    for segments in batch["segments"][:-1]:
        triples: list[Triple] = []
        for one in range(int(draw.integers(2, CONTRASTIVE.most + 1))):
            inside = np.flatnonzero(segments == draw.choice(segments))
            spans = []
            for _ in range(2):
                first = int(draw.choice(inside))
                spans.append((first, min(first + int(draw.integers(1, 5)), int(inside[-1]) + 1)))
            head, tail = spans if one % 3 or not triples else (triples[-1][0], spans[1])
            tail = triples[0][1] if one == 4 else head if one == 5 else tail
            triples.append((head, tail, 0.5 ** int(draw.integers(0, 3))))
        every.append(triples)
    return [*every, []]


def fields(triples: list[list[Triple]]) -> dict[str, np.ndarray]:
    """The fields of a batch with these triples."""
    spans = np.zeros((len(triples), CONTRASTIVE.most, 4), np.int32)
    weights = np.zeros(spans.shape[:2], np.float32)
    for row, own in enumerate(triples):
        for at, (head, tail, weight) in enumerate(own):
            spans[row, at], weights[row, at] = (*head, *tail), weight
    return {"triples": spans, "triple_weights": weights}


def test_weights_of_one_relation_and_hop_do_not_cancel():
    states = np.random.default_rng(2).normal(size=(12, 8))
    own: list[Triple] = [((0, 2), (3, 5), 0.25), ((0, 2), (6, 7), 0.25), ((8, 9), (9, 12), 0.25)]
    batch = fields([own])
    heads, tails = np.split(batch["triples"][0], 2, axis=1)
    spans = np.array([states[first:stop].sum(0) for first, stop in (*heads, *tails)], np.float32)
    found = row_terms(spans[None], batch["triples"], batch["triple_weights"], 0.5)
    full = row_terms(spans[None], batch["triples"], 4 * batch["triple_weights"], 0.5)
    with jax.enable_x64(True):
        wanted = float(contrastive64.row_term(states, own, 0.5))
    np.testing.assert_allclose(found, [wanted], rtol=1e-5)
    np.testing.assert_allclose(full, [4 * wanted], rtol=1e-5)


def test_a_head_is_no_negative_of_itself():
    """The second triple's tail is the first one's head."""
    triples = np.array([[(0, 2, 3, 5), (6, 7, 0, 2), (8, 9, 9, 12)]])
    found = np.asarray(negatives(triples, np.ones((1, 3), bool)))[0]
    assert found.tolist() == [[False, False, True], [True, False, True], [True, True, False]]


@pytest.mark.matrix(quick=("split",), ci=1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_term_and_gradients_equal_float64(layout: str):
    sections = LAYOUTS[layout]
    model = {"layers": 2, "kv_heads": 4, "causal": False} | sections.get("model", {})
    config = replace(small(**sections | {"model": model}), loss=replace(LOSS, contrastive=CONTRASTIVE))
    run = SmallRun(config)
    plain = replace(config, loss=LOSS)
    run.data = masked_data(plain, run.data)
    options = asdict(config.model)
    weights, batch = random_weights(options, padded_vocab=64), run.rows(0)
    triples = triples_of(batch)
    wanted, term, gradients = contrastive64.loss_and_gradients(
        weights, options, batch, triples, CONTRASTIVE.weight, CONTRASTIVE.temperature
    )
    assert term > 0.1, "there are negatives"
    state = state_with(run.step, run.by_row(weights) if config.parallel.pipe > 1 else weights)
    loss, found = run.step.gradients(state, run.place(batch | fields(triples)))
    assert_close(loss, wanted, run.by_layer(found), gradients)
