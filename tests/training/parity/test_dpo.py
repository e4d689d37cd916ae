"""Direct preference optimization: loss, rewards and gradients against TRL's definition in float64, on any layout.

The definition is written here in NumPy from `DPOTrainer.dpo_loss` of TRL (`loss_type="sigmoid"`), and its derivative by
hand; the decoder's own derivative is that of `tests/reference/decoder64.py`.
"""

from dataclasses import asdict, replace
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config, LossConfig
from jaxpar.config.mappings.experts import ExpertsConfig
from tests.data.chat_files import VOCAB
from tests.data.preference_files import prepared_pairs
from tests.reference import decoder64
from tests.reference.small import random_weights
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_close, assert_equals_float64

ROWS, LENGTH = 8, 256
BETA, SMOOTHING = 0.5, 0.1
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "one device": {"parallel": {"fsdp": 1}},
    "split": {"parallel": {"fsdp": 2, "tensor": 2, "context": 2, "zero": 3}},
    "microbatches in tiles": {"parallel": {"fsdp": 2, "tensor": 2, "microbatches": 2}, "memory": {"loss_tiles": 3}},
    "contiguous context": {"parallel": {"context": 4, "context_order": "contiguous"}, "memory": {"remat": "full"}},
    "whole weights": {"parallel": {"fsdp": 4, "zero": 0, "microbatches": 2}},
    "sharded gradients": {"parallel": {"fsdp": 4, "zero": 2}},
    "stages": {"parallel": {"pipe": 2, "fsdp": 2, "context": 2, "microbatches": 2}},
    "stages that share the vocabulary": {
        "parallel": {"pipe": 2, "tensor": 2, "microbatches": 2, "pipe_ends": "shared"}
    },
    "branching stages": {"parallel": {"pipe": 2, "context": 2, "microbatches": 2, "pipe_ticks": "branching"}},
    "a split backward": {"parallel": {"pipe": 2, "tensor": 2, "microbatches": 4, "schedule": "zb-h1"}},
}  # fmt: skip


def trl(chosen: np.ndarray, rejected: np.ndarray, reference_chosen: np.ndarray, reference_rejected: np.ndarray) -> Any:
    """Losses, and rewards, of pairs: log-probabilities of the policy and of the reference, in float64."""
    log_sigmoid = lambda x: -np.logaddexp(0.0, -x)
    logits = (chosen - rejected) - (reference_chosen - reference_rejected)
    losses = -log_sigmoid(BETA * logits) * (1 - SMOOTHING) - log_sigmoid(-BETA * logits) * SMOOTHING
    rewards = BETA * (chosen - reference_chosen), BETA * (rejected - reference_rejected)
    return losses, *rewards


def slope(logits: np.ndarray) -> np.ndarray:
    """The derivative of a loss with respect to its `logits`."""
    sigmoid = lambda x: np.exp(-np.logaddexp(0.0, -x))
    return -BETA * ((1 - SMOOTHING) * sigmoid(-BETA * logits) - SMOOTHING * sigmoid(BETA * logits))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A token folder of pairs."""
    return str(prepared_pairs(tmp_path_factory.mktemp("dpo") / "pairs").path)


def of_pairs(tokens: str, **sections: dict[str, Any]) -> Config:
    data = {"source": "tokens", "path": tokens, "sequence_length": LENGTH, "batch_size": ROWS}
    given = {"run": {"init_from": "not opened"}, "data": data, "model": {"layers": 2, "vocab": VOCAB, "kv_heads": 4}}
    loss = LossConfig(name="dpo", beta=BETA, label_smoothing=SMOOTHING)
    return replace(small(**{**given, **sections}), loss=loss)


def batch_of(run: SmallRun) -> dict[str, np.ndarray]:
    """The first batch, with a reference that the policy may be near to or far from."""
    (part,) = run.data.paired
    stream = part.rows.stream
    documents = len(stream.starts)
    assert stream.loss_mask is not None
    counted = np.add.reduceat(stream.loss_mask[:].astype(np.float64), stream.starts[:])
    noise = np.random.default_rng(0).standard_normal(documents)
    part.rows.reference.values = (-4.5 * counted + 2 * noise).astype(np.float32)
    return run.rows(0)


def documents_of(batch: dict[str, np.ndarray]) -> list[tuple[int, np.ndarray]]:
    """Row and tokens of each document, chosen and rejected in turn."""
    found = []
    for row, pairs in enumerate(batch["pairs"]):
        found += [(row, np.flatnonzero(batch["segments"][row] == number + 1)) for number in range(2 * pairs)]
    return found


def expected(weights: Any, options: dict[str, Any], batch: dict[str, np.ndarray]) -> tuple[dict[str, float], Any]:
    """Loss and rewards of a batch, and the loss's gradients, in float64."""
    likely = decoder64.log_likelihoods(decoder64.logits(weights, options, batch), batch["labels"])
    documents = documents_of(batch)
    sums = np.array([(batch["mask"][row, own] * likely[row, own]).sum() for row, own in documents])
    reference = np.array([batch["reference"][row, own].sum(dtype=np.float64) for row, own in documents])
    (chosen, rejected), (of_chosen, of_rejected) = sums.reshape(-1, 2).T, reference.reshape(-1, 2).T
    losses, good, bad = trl(chosen, rejected, of_chosen, of_rejected)
    found = {
        "loss": losses.mean(), "reward_chosen": good.mean(), "reward_rejected": bad.mean(),
        "reward_margin": (good - bad).mean(), "reward_accuracy": (good > bad).mean(),
    }  # fmt: skip
    by_hand = slope(chosen - rejected - of_chosen + of_rejected)
    of_token = np.zeros(batch["mask"].shape)
    for index, (row, own) in enumerate(documents):
        sign = -1 if index % 2 == 0 else 1  # chosen and rejected in turn
        of_token[row, own] = sign * batch["mask"][row, own] * by_hand[index // 2] / len(losses)
    return found, decoder64.weighted_gradients(weights, options, batch, of_token)


def test_the_derivative_by_hand_is_that_of_the_definition():
    logits, step = np.linspace(-9, 9, 37), 1e-5
    loss = lambda chosen: trl(chosen, np.full(37, -3.0), np.full(37, -4.0), np.full(37, -2.5))[0]
    begin = logits - 3.0 - 1.5
    numeric = (loss(begin + step) - loss(begin - step)) / (2 * step)
    np.testing.assert_allclose(slope(begin + 3.0 + 4.0 - 2.5), numeric, rtol=1e-6, atol=1e-9)


@pytest.mark.matrix(quick=("split",), ci=3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_rewards_and_gradients_equal_float64(tokens: str, layout: str):
    run = SmallRun(of_pairs(tokens, **LAYOUTS[layout]))
    options = asdict(run.config.model)
    weights, batch = random_weights(options, padded_vocab=64), batch_of(run)
    pairs = batch["pairs"]
    assert pairs.min() < pairs.max() and pairs.sum() > ROWS, "rows have different numbers of pairs"
    wanted, gradients = expected(weights, options, batch)
    assert 0 < wanted["reward_accuracy"] < 1

    state, count = assert_equals_float64(run, weights, batch, wanted, gradients)
    assert count == pairs.sum()
    loss, found = run.step.gradients(state, run.place(batch | {"mask": np.zeros_like(batch["mask"])}))
    assert np.isnan(loss), "pairs without a counted token have no loss"
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(jax.device_get(found)))


@pytest.mark.long
def test_experts_learn_from_pairs_alike_on_every_layout(tokens: str):
    """The routers' losses are those of the tokens of both answers, beside the loss of the pairs."""
    experts = ExpertsConfig(count=4, width=16, shared=1, balance_loss=0.1, z_loss=0.01)
    model = {"layers": 2, "vocab": VOCAB, "kv_heads": 4, "experts": experts}
    parallel = {"expert": 2, "tensor": 2, "experts": {"exchange": "all_to_all"}}
    one, split = (SmallRun(of_pairs(tokens, model=model, parallel=own)) for own in ({"fsdp": 1}, parallel))
    (wanted, of_one), (loss, of_split) = (
        jax.device_get(run.step.gradients(run.step.residency.initial_state(), run.place(batch_of(run))))
        for run in (one, split)
    )
    assert np.abs(one.by_layer(of_one)["layers"]["all"]["mlp"]["router"]).max() > 0
    assert_close(loss, float(wanted), split.by_layer(of_split), one.by_layer(of_one))
