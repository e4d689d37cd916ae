"""Losses of pairs without a reference, and of marked answers: loss, reports and gradients against float64.

The definitions are written here in NumPy from TRL's `CPOTrainer` (`loss_type="simpo"`), `ORPOTrainer` and `KTOTrainer`,
with the derivatives by hand; how ours differ from TRL's is in the files of the objectives.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config, LossConfig
from tests.data.preference_files import prepared_marked, prepared_pairs
from tests.reference import decoder64
from tests.reference.small import random_weights
from tests.small_run import SmallRun
from tests.training.parity.one_device import assert_equals_float64
from tests.training.parity.test_dpo import LAYOUTS, ROWS, batch_of, documents_of, of_pairs

LOSSES = {
    "simpo": LossConfig(name="simpo", beta=2.0, gamma=0.7, label_smoothing=0.1),
    "orpo": LossConfig(name="orpo", beta=0.3),
    "kto": LossConfig(name="kto", beta=0.2, desirable_weight=1.5, undesirable_weight=0.8),
}
LAYOUT_NAMES = ("split", "microbatches in tiles", "contiguous context", "stages that share the vocabulary")

type Pairs = np.ndarray
"""[row, pair, 2], NaN where a row has no such pair."""


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))


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
    "simpo": simpo, "orpo": orpo, "kto": kto,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A token folder of pairs, and one of marked answers."""
    folder = tmp_path_factory.mktemp("preferences")
    return {"pairs": str(prepared_pairs(folder / "pairs").path), "kto": str(prepared_marked(folder / "marked").path)}


def config_of(folders: dict[str, str], name: str, **sections: dict[str, Any]) -> Config:
    return replace(of_pairs(folders.get(name, folders["pairs"]), **sections), loss=LOSSES[name])


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
    more = (sums(batch["reference"]), sums(batch["label"])[..., 0]) if name == "kto" else ()
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


@pytest.mark.matrix(ci=3)
@pytest.mark.parametrize("layout", LAYOUT_NAMES)
@pytest.mark.parametrize("name", LOSSES)
def test_loss_reports_and_gradients_equal_float64(folders: dict[str, str], name: str, layout: str):
    run = SmallRun(config_of(folders, name, **LAYOUTS[layout]))
    options = asdict(run.config.model)
    weights, batch = random_weights(options, padded_vocab=64), batch_of(run)
    if name == "kto":
        assert set(batch["label"].ravel()) == {-1.0, 0.0, 1.0}
        # A reference that finds unrelated answers less likely than the model does.
        batch["reference"] = np.where(batch["reference"] != 0, batch["reference"] - 8, 0).astype(np.float32)
    wanted, gradients = expected(weights, options, batch, name)
    assert 0 < wanted["reward_accuracy"] < 1 and wanted.get("kl", 1) > 0

    state, count = assert_equals_float64(run, weights, batch, wanted, gradients)
    assert count == batch["pairs"].sum()
    _, found = run.step.gradients(state, run.place(batch | {"mask": np.zeros_like(batch["mask"])}))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(jax.device_get(found)))


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_derivative_by_hand_is_that_of_the_definition(name: str):
    draws = np.random.default_rng(0)
    sums, sizes = -draws.uniform(5, 40, (3, 4, 2)), draws.integers(1, 9, (3, 4, 2)).astype(np.float64)
    more = (sums - draws.normal(0.5, 2, sums.shape), draws.choice([-1.0, 1.0], (3, 4))) if name == "kto" else ()
    _, slope, reports = DEFINITIONS[name](sums, sizes, *more)
    shift = np.array([1e-6, 0]) if name == "kto" else np.array([1e-6, 2e-6])  # z has no derivative
    ahead, behind = (DEFINITIONS[name](sums + sign * shift, sizes, *more)[0] for sign in (1, -1))
    np.testing.assert_allclose((slope * shift).sum(-1), (ahead - behind) / 2, rtol=1e-5, atol=1e-12)
    assert name != "kto" or (reports["kl"] > 0).all()
