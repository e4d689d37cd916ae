"""Losses of pairs and of marked answers: loss, reports and gradients against float64, on any layout.

The definitions are written here in NumPy from TRL's `DPOTrainer` (`loss_type="sigmoid"`), `CPOTrainer`
(`loss_type="simpo"`), `ORPOTrainer` and `KTOTrainer`, with the derivatives by hand; how ours differ from TRL's is in
the files of the objectives. The decoder's own derivative is that of `tests/reference/decoder64.py`.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config, LossConfig
from jaxpar.config.mappings.experts import ExpertsConfig
from tests.data.chat_files import VOCAB
from tests.data.preference_files import prepared_marked, prepared_pairs
from tests.reference import decoder64
from tests.reference.small import random_weights
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import assert_close, assert_equals_float64

ROWS, LENGTH = 8, 256
LOSSES = {
    "dpo": LossConfig(name="dpo", beta=0.5, label_smoothing=0.1),
    "simpo": LossConfig(name="simpo", beta=2.0, gamma=0.7, label_smoothing=0.1),
    "orpo": LossConfig(name="orpo", beta=0.3),
    "kto": LossConfig(name="kto", beta=0.2, desirable_weight=1.5, undesirable_weight=0.8),
}
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
FOUR = ("split", "microbatches in tiles", "contiguous context", "stages that share the vocabulary")
CASES = [("dpo", layout) for layout in LAYOUTS] + [(name, own) for name in ("simpo", "orpo", "kto") for own in FOUR]

type Pairs = np.ndarray
"""[row, pair, 2], NaN where a row has no such pair."""


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))


def dpo(sums: Pairs, sizes: Pairs, reference: Pairs) -> tuple[np.ndarray, Pairs, dict[str, np.ndarray]]:
    loss, rewards = LOSSES["dpo"], LOSSES["dpo"].beta * (sums - reference)
    margin = rewards[..., 0] - rewards[..., 1]
    value = np.logaddexp(0, -margin) * (1 - loss.label_smoothing) + np.logaddexp(0, margin) * loss.label_smoothing
    slope = loss.beta * (sigmoid(margin) - (1 - loss.label_smoothing))
    return value, np.stack([slope, -slope], -1), compared(rewards)


def simpo(sums: Pairs, sizes: Pairs, *_: Any) -> tuple[np.ndarray, Pairs, dict[str, np.ndarray]]:
    loss, means = LOSSES["simpo"], sums / sizes
    margin = loss.beta * (means[..., 0] - means[..., 1] - loss.gamma / loss.beta)
    value = np.logaddexp(0, -margin) * (1 - loss.label_smoothing) + np.logaddexp(0, margin) * loss.label_smoothing
    slope = loss.beta * (sigmoid(margin) - (1 - loss.label_smoothing))
    return value, np.stack([slope, -slope], -1) / sizes, compared(loss.beta * means)


def orpo(sums: Pairs, sizes: Pairs, *_: Any) -> tuple[np.ndarray, Pairs, dict[str, np.ndarray]]:
    beta, means = LOSSES["orpo"].beta, sums / sizes
    log_odds = means[..., 0] - means[..., 1] - (np.log1p(-np.exp(means[..., 0])) - np.log1p(-np.exp(means[..., 1])))
    value = -means[..., 0] + beta * np.logaddexp(0, -log_odds)
    # The derivative of m - log(1 - e^m) is 1 / (1 - e^m).
    slope = (-beta * sigmoid(-log_odds))[..., None] * np.array([1.0, -1.0]) / (1 - np.exp(means))
    slope[..., 0] -= 1
    return value, slope / sizes, compared(beta * means)


def kto(sums: Pairs, sizes: Pairs, reference: Pairs, label: np.ndarray) -> Any:
    loss, rewards = LOSSES["kto"], sums - reference
    z = np.maximum(np.nanmean(rewards[..., 1], axis=1), 0)[:, None]
    margin = loss.beta * label * (rewards[..., 0] - z)
    weight = np.where(label > 0, loss.desirable_weight, loss.undesirable_weight)
    slope = -weight * loss.beta * label * sigmoid(margin) * sigmoid(-margin)
    reports = {"reward_margin": margin, "reward_accuracy": margin > 0, "kl": z + 0 * margin}
    return weight * (1 - sigmoid(margin)), np.stack([slope, 0 * slope], -1), reports


def compared(rewards: Pairs) -> dict[str, np.ndarray]:
    good, bad = rewards[..., 0], rewards[..., 1]
    return {"reward_chosen": good, "reward_rejected": bad, "reward_margin": good - bad, "reward_accuracy": good > bad}


DEFINITIONS: dict[str, Callable[..., tuple[np.ndarray, Pairs, dict[str, np.ndarray]]]] = {
    "dpo": dpo, "simpo": simpo, "orpo": orpo, "kto": kto,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A token folder of pairs, and one of marked answers."""
    folder = tmp_path_factory.mktemp("preferences")
    return {"pairs": str(prepared_pairs(folder / "pairs").path), "kto": str(prepared_marked(folder / "marked").path)}


def of_pairs(tokens: str, name: str = "dpo", **sections: dict[str, Any]) -> Config:
    """The small decoder on a token folder of pairs, or of marked answers, with the loss of this `name`."""
    data = {"source": "tokens", "path": tokens, "sequence_length": LENGTH, "batch_size": ROWS}
    given = {"run": {"init_from": "not opened"}, "data": data, "model": {"layers": 2, "vocab": VOCAB, "kv_heads": 4}}
    return replace(small(**{**given, **sections}), loss=LOSSES[name])


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


def by_pair(batch: dict[str, np.ndarray], values: np.ndarray) -> Pairs:
    """The sums over documents of the values of tokens."""
    found = np.full((ROWS, batch["pairs"].max(), 2), np.nan)
    numbers = np.zeros(ROWS, int)
    for row, own in documents_of(batch):
        found[row, numbers[row] // 2, numbers[row] % 2] = values[row, own].sum(dtype=np.float64)
        numbers[row] += 1
    return found


def expected(weights: Any, options: dict[str, Any], batch: dict[str, np.ndarray], name: str) -> tuple[Any, Any]:
    """Loss and reports of a batch, and the loss's gradients, in float64."""
    likely = decoder64.log_likelihoods(decoder64.logits(weights, options, batch), batch["labels"])
    sums = partial(by_pair, batch)
    more = [sums(batch["reference"])] if name in ("dpo", "kto") else []
    more += [sums(batch["label"])[..., 0]] if name == "kto" else []
    with np.errstate(invalid="ignore"):
        losses, slopes, reports = DEFINITIONS[name](sums(batch["mask"] * likely), sums(batch["mask"]), *more)
    found = {key: np.nansum(np.where(np.isnan(losses), 0, value)) for key, value in reports.items()}
    pairs = batch["pairs"].sum()
    found = {"loss": np.nansum(losses) / pairs} | {key: value / pairs for key, value in found.items()}
    of_token = np.zeros(batch["mask"].shape)
    numbers = np.zeros(ROWS, int)
    for row, own in documents_of(batch):
        of_token[row, own] = -batch["mask"][row, own] * slopes[row, numbers[row] // 2, numbers[row] % 2] / pairs
        numbers[row] += 1
    return found, decoder64.weighted_gradients(weights, options, batch, of_token)


@pytest.mark.matrix(quick=("dpo-split",), ci=6)
@pytest.mark.parametrize(("name", "layout"), CASES)
def test_loss_reports_and_gradients_equal_float64(folders: dict[str, str], name: str, layout: str):
    run = SmallRun(of_pairs(folders.get(name, folders["pairs"]), name, **LAYOUTS[layout]))
    options = asdict(run.config.model)
    weights, batch = random_weights(options, padded_vocab=64), batch_of(run)
    pairs = batch["pairs"]
    assert pairs.min() < pairs.max() and pairs.sum() > ROWS, "rows have different numbers of pairs"
    if name == "kto":
        assert set(batch["label"].ravel()) == {-1.0, 0.0, 1.0}
        # A reference that finds unrelated answers less likely than the model does.
        batch["reference"] = np.where(batch["reference"] != 0, batch["reference"] - 8, 0).astype(np.float32)
    wanted, gradients = expected(weights, options, batch, name)
    assert 0 < wanted["reward_accuracy"] < 1 and wanted.get("kl", 1) > 0

    state, count = assert_equals_float64(run, weights, batch, wanted, gradients)
    assert count == pairs.sum()
    loss, found = run.step.gradients(state, run.place(batch | {"mask": np.zeros_like(batch["mask"])}))
    assert np.isnan(loss), "answers without a valid token have no loss"
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(jax.device_get(found)))


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_derivative_by_hand_is_that_of_the_definition(name: str):
    draws = np.random.default_rng(0)
    sums, sizes = -draws.uniform(5, 40, (3, 4, 2)), draws.integers(1, 9, (3, 4, 2)).astype(np.float64)
    more = [sums - draws.normal(0.5, 2, sums.shape)] if name in ("dpo", "kto") else []
    more += [draws.choice([-1.0, 1.0], (3, 4))] if name == "kto" else []
    _, slope, reports = DEFINITIONS[name](sums, sizes, *more)
    shift = np.array([1e-6, 0]) if name == "kto" else np.array([1e-6, 2e-6])  # z has no derivative
    ahead, behind = (DEFINITIONS[name](sums + sign * shift, sizes, *more)[0] for sign in (1, -1))
    np.testing.assert_allclose((slope * shift).sum(-1), (ahead - behind) / 2, rtol=1e-5, atol=1e-12)
    assert name != "kto" or (reports["kl"] > 0).all()


@pytest.mark.long
def test_experts_learn_from_pairs_alike_on_every_layout(folders: dict[str, str]):
    """The routers' losses are those of the tokens of both answers, beside the loss of the pairs."""
    experts = ExpertsConfig(count=4, width=16, shared=1, balance_loss=0.1, z_loss=0.01)
    model = {"layers": 2, "vocab": VOCAB, "kv_heads": 4, "experts": experts}
    parallel = {"expert": 2, "tensor": 2, "experts": {"exchange": "all_to_all"}}
    one, split = (SmallRun(of_pairs(folders["pairs"], model=model, parallel=own)) for own in ({"fsdp": 1}, parallel))
    (wanted, of_one), (loss, of_split) = (
        jax.device_get(run.step.gradients(run.step.residency.initial_state(), run.place(batch_of(run))))
        for run in (one, split)
    )
    assert np.abs(one.by_layer(of_one)["layers"]["all"]["mlp"]["router"]).max() > 0
    assert_close(loss, float(wanted), split.by_layer(of_split), one.by_layer(of_one))
