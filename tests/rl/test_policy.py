"""Losses of drawn answers equal float64 by hand: each preset and setting, packed and split over context; in a step."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxpar.config import Config, LossConfig
from jaxpar.config.mappings.policy import PRESETS, Policy, PolicyConfig
from jaxpar.config.plan import AxisSizes
from jaxpar.mesh.axes import AXES, vary
from jaxpar.mesh.build import build_mesh, mapped
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.parameters import merge
from jaxpar.objectives.policy import TOKENS, Drawn, _sums
from jaxpar.rl.advantages import advantages, overlong_penalty, token_weights
from tests.given_weights import state_with
from tests.gpu_compile import in_child
from tests.reference import decoder64
from tests.reference.small import random_weights
from tests.rl.policy64 import answer_loss
from tests.small_run import SmallRun, small
from tests.training.parity.one_device import TOLERANCE, assert_close

ROWS, LENGTH = 8, 64
SETTINGS: dict[str, Policy] = PRESETS | {
    "dual clip": replace(PRESETS["grpo"], dual=1.5),
    "cispo of verl": replace(PRESETS["cispo"], clip="cispo_relative", low=0.1, high=0.2),
    **{f"penalty {kl}": replace(PRESETS["grpo"], kl=kl) for kl in ("k1", "k2", "k3", "k3_with_k2_gradient")},
    "entropy": replace(PRESETS["aipo"], entropy=0.3),
    "truncated": replace(PRESETS["dapo"], mismatch="truncated", mismatch_high=1.1),
    "icepop": replace(PRESETS["dapo"], mismatch="icepop", mismatch_low=0.9, mismatch_high=1.1, kl="k3"),
    "masked sequence": replace(PRESETS["grpo"], mismatch="masked_sequence", mismatch_high=1.0),
    "masked negative": replace(PRESETS["gspo"], mismatch="masked_negative", mismatch_high=0.0),
}  # fmt: skip


def answers_of(rng: np.random.Generator, rows: int = ROWS, length: int = LENGTH) -> dict[str, np.ndarray]:
    """Packed answers of several lengths with their prompts, and padding behind some of them."""
    batch = {name: np.zeros((rows, length), np.int32) for name in ("segments", "positions")}
    batch |= {name: np.zeros((rows, length)) for name in ("mask", "advantage", "weight")}
    for row in range(rows):
        at, document = 0, 0
        while (size := int(rng.integers(6, 20))) + at <= length:
            here, answer = slice(at, at + size), slice(at + int(rng.integers(0, 5)), at + size)
            document += 1
            batch["segments"][row, here], batch["positions"][row, here] = document, np.arange(size)
            batch["mask"][row, answer], batch["advantage"][row, answer] = 1, rng.normal()
            at += size
    for row, own in documents_of(batch):
        batch["weight"][row, own] = batch["mask"].sum() / (len(documents_of(batch)) * len(own))
    return batch


def documents_of(batch: dict[str, np.ndarray]) -> list[tuple[int, np.ndarray]]:
    """Row and tokens of each answer."""
    return [
        (row, np.flatnonzero((segments == document) & (batch["mask"][row] > 0)))
        for row, segments in enumerate(batch["segments"])
        for document in range(1, segments.max() + 1)
    ]


def with_policies(batch: dict[str, np.ndarray], p: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The log-probabilities of the other policies, near those of the model, at the tokens of answers."""
    near = lambda x: np.where(batch["mask"] > 0, x + 0.3 * rng.normal(size=x.shape), 0)
    before = near(p)
    return batch | {"before": before, "sampled": np.where(batch["mask"] > 0, near(before), 0), "reference": near(p)}


def expected(p: np.ndarray, batch: dict[str, np.ndarray], policy: Policy) -> tuple[float, np.ndarray]:
    """The sum over tokens times their weights, and its derivative."""
    total, slope = 0.0, np.zeros(p.shape)
    for row, own in documents_of(batch):
        of = lambda name, row=row, own=own: batch[name][row, own].astype(np.float64)
        loss, by_p = answer_loss(
            p[row, own], of("before"), of("sampled"), of("reference"), of("advantage")[0], asdict(policy)
        )
        total += (of("weight") * loss).sum()
        slope[row, own] = of("weight") * by_p
    return total, slope


@pytest.mark.matrix(quick=("4",), ci=1)
@pytest.mark.parametrize("context", [1, 4])
def test_loss_and_derivative_of_each_setting_equal_those_by_hand(context: int):
    rng = np.random.default_rng(1)
    batch = answers_of(rng)
    p = np.where(batch["mask"] > 0, -rng.uniform(0.1, 3, (ROWS, LENGTH)), 0)
    batch = with_policies(batch, p, rng)
    split, everywhere = PartitionSpec(None, "context"), PartitionSpec()

    def function(p: jax.Array, *arrays: jax.Array) -> Any:
        return {name: of_setting(policy, vary(p), Drawn(*vary(arrays))) for name, policy in SETTINGS.items()}

    def of_setting(policy: Policy, p: jax.Array, drawn: Drawn) -> Any:
        (loss, means), slope = jax.value_and_grad(_sums, has_aux=True)(p, drawn, policy)
        others = [axis for axis in AXES if axis != "context"]
        return jax.tree.map(lambda x: reduce_sum(x, AXES), (loss, means)), jax.lax.pmax(slope, others)

    mesh = build_mesh(AxisSizes(context=context), jax.devices()[:context])
    with jax.enable_x64(True):
        made = dict.fromkeys(SETTINGS, ((everywhere, dict.fromkeys(TOKENS, everywhere)), split))
        run = jax.jit(mapped(function, mesh, "float32", (split,) * (1 + len(Drawn._fields)), made))
        settings = jax.device_get(run(p, *(batch[name] for name in Drawn._fields)))
    log_w = (batch["before"] - batch["sampled"])[batch["mask"] > 0]
    for name, ((loss, means), slope) in settings.items():
        wanted, by_hand = expected(p, batch, SETTINGS[name])
        assert abs(loss - wanted) <= 1e-6 * abs(wanted), name
        np.testing.assert_allclose(slope, by_hand, rtol=1e-6, atol=1e-9, err_msg=name)
        assert means["importance"] == pytest.approx(np.exp(log_w).sum())
        assert means["mismatch_share"] == (np.abs(log_w) > np.log(2)).sum() > 0
        assert means["entropy"] == pytest.approx(-p.sum())


LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "one device": {},
    "split": {"parallel": {"fsdp": 2, "tensor": 2, "context": 2, "zero": 3}},
    "microbatches in tiles": {"parallel": {"fsdp": 2, "tensor": 2, "microbatches": 2}, "memory": {"loss_tiles": 3}},
    "stages": {"parallel": {"pipe": 2, "fsdp": 2, "context": 2, "microbatches": 2}},
    "a split backward": {"parallel": {"pipe": 2, "tensor": 2, "microbatches": 4, "schedule": "zb-h1"}},
}


def of_answers(name: str, policy: PolicyConfig, **sections: dict[str, Any]) -> Config:
    """The small model and its step under a loss of answers."""
    data = {"source": "prompts", "path": "digits", "sequence_length": LENGTH, "batch_size": ROWS}
    return replace(small(data=data, **sections), loss=LossConfig(name=name, reference="not opened", policy=policy))


def text_of(rng: np.random.Generator, rows: int = ROWS, length: int = LENGTH) -> dict[str, np.ndarray]:
    """Tokens that are drawn at random, each with the next one as its label."""
    tokens = rng.integers(0, 64, (rows, length + 1)).astype(np.int32)
    indices = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    return {"tokens": tokens[:, :-1], "labels": tokens[:, 1:], "indices": indices, "examples": np.arange(rows)}


class Case(NamedTuple):
    """A step under a preset, and what it is to give."""

    run: SmallRun
    weights: Any
    batch: dict[str, np.ndarray]
    loss: float
    gradients: Any
    entropy: float


def case_of(layout: str, name: str) -> Case:
    """A preset on a layout, by float64."""
    temperature, cap = (1.5, 2.0) if name == "aipo" else (1.0, None)
    config = of_answers(name, PolicyConfig(kl="k3"), **{"model": {"layers": 2, "logit_softcap": cap}} | LAYOUTS[layout])
    run = SmallRun(replace(config, rl=replace(config.rl, temperature=temperature)))
    options, rng = asdict(run.config.model), np.random.default_rng(2)
    weights, rows = random_weights(options, padded_vocab=64), text_of(rng) | answers_of(rng)
    logits = decoder64.logits(weights, options, rows) / temperature
    p = np.where(rows["mask"] > 0, decoder64.log_likelihoods(logits, rows["labels"]), 0)
    batch = {
        key: x.astype(np.float32) if x.dtype == np.float64 else x for key, x in with_policies(rows, p, rng).items()
    }
    wanted, slope = expected(p, batch, replace(PRESETS[name], kl="k3"))
    tokens = batch["mask"].sum()
    # A head and a cap that are divided by the temperature divide the logits by it.
    tempered = weights | {"head": {"weight": weights["head"]["weight"] / temperature}}
    capped = options | {"logit_softcap": None if cap is None else cap / temperature}
    gradients = decoder64.weighted_gradients(tempered, capped, batch, -slope / tokens)
    gradients = gradients | {"head": {"weight": gradients["head"]["weight"] / temperature}}
    given = run.by_row(weights) if run.config.parallel.pipe > 1 else weights
    return Case(run, given, batch, wanted / tokens, gradients, -p.sum() / tokens)


@pytest.mark.matrix(quick=("one device-gspo", "split-gspo"), ci=2)
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_has_the_loss_and_gradients_of_float64(layout: str, name: str):
    case = case_of(layout, name)
    run, state, placed = case.run, state_with(case.run.step, case.weights), case.run.place(case.batch)
    loss, found = run.step.gradients(state, placed)
    assert_close(loss, case.loss, run.by_layer(found), case.gradients)
    sums, count = run.step.evaluate(merge(state.frozen, run.step.residency.readable(state.master)), placed)
    assert float(sums["entropy"]) / float(count) == pytest.approx(case.entropy, rel=TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize("name", ["grpo", "gspo", "aipo"])
@pytest.mark.parametrize("layout", ["split", "stages"])
def test_with_64_bits_a_step_has_the_loss_and_gradients_by_hand(layout: str, name: str):
    """On meshes that split a row, and on stages."""
    loss, gradients = in_child("tests.rl.wide64:step_gaps", layout, name)
    assert loss <= 1e-6 and gradients <= 1e-6


def test_the_first_update_from_answers_has_a_ratio_of_one():
    """Without log-probabilities of before (NaN) the gradient is that of -A log p, and nothing is clipped."""
    rng = np.random.default_rng(3)
    batch = answers_of(rng)
    p = np.where(batch["mask"] > 0, -rng.uniform(0.1, 3, (ROWS, LENGTH)), 0)
    batch = with_policies(batch, p, rng) | {"before": np.where(batch["mask"] > 0, np.nan, 0)}
    names = [name for name in Drawn._fields if name != "segments"]
    drawn = Drawn(segments=jnp.asarray(batch["segments"]), **{name: jnp.asarray(batch[name]) for name in names})
    slope, means = jax.grad(partial(_sums, drawn=drawn, policy=PRESETS["grpo"]), has_aux=True)(jnp.asarray(p))
    np.testing.assert_allclose(slope, -batch["weight"] * batch["advantage"] * batch["mask"], rtol=1e-5)
    assert means["clipped"] == 0


def test_a_row_may_be_full_of_answers_of_one_token():
    """Each with a prompt of one token: a document for each token of the row."""
    ones, split = np.ones((1, 8), np.float32), PartitionSpec(None, "context")

    def slope(p: jax.Array, ones: jax.Array) -> jax.Array:
        drawn = Drawn(ones, 1 + jnp.arange(8)[None], ones, ones, 0 * ones, 0 * ones, 0 * ones)
        return jax.grad(lambda p: _sums(p, drawn, PRESETS["gspo"])[0])(p)

    run = jax.jit(mapped(slope, build_mesh(AxisSizes(), jax.devices()[:1]), "float32", (split, split), split))
    np.testing.assert_allclose(run(1e-5 * ones, ones), -ones, rtol=1e-4)


def test_advantages_are_those_of_the_papers():
    rewards = np.array([[1.0, 2, 3], [4, 5, 6]])
    np.testing.assert_allclose(advantages(rewards, PRESETS["rloo"]), [[-1.5, 0, 1.5]] * 2)
    np.testing.assert_allclose(advantages(rewards, PRESETS["dr_grpo"]), [[-1, 0, 1]] * 2)
    np.testing.assert_allclose(advantages(rewards, PRESETS["grpo"]), np.array([[-1, 0, 1]] * 2) / (1 + 1e-4))


def test_answers_without_a_reward_and_groups_of_one_kind_are_left_out():
    rewards = np.array([[0.0, np.nan, 1], [2, 2, 2], [np.nan, np.nan, 7]])
    assert np.isnan(advantages(np.array([[0.0, -0.5]]), PRESETS["dapo"], np.zeros((1, 2)))).all(), "before penalties"
    found = advantages(rewards, PRESETS["dapo"])
    assert np.isnan(found).tolist() == [[False, True, False], [True] * 3, [True] * 3]
    assert np.isnan(advantages(rewards, PRESETS["grpo"])).tolist()[1] == [False] * 3
    np.testing.assert_allclose(found[0, [0, 2]], np.array([-1, 1]) / np.sqrt(2) / (1 + 1e-4 / np.sqrt(0.5)), rtol=1e-6)


def test_tokens_are_averaged_as_the_setting_says():
    """Losses of 1 a token: the mean of answers, of tokens, and the sum over answers of the longest allowed."""
    lengths, losses = np.array([1, 3, 8]), np.array([5.0, 1, 2])
    mean = lambda average: (lengths * token_weights(lengths, 10, average) * losses).sum() / lengths.sum()
    assert mean("sequence") == pytest.approx(losses.mean())
    assert mean("token") == pytest.approx((lengths * losses).sum() / 12)
    assert mean("length") == pytest.approx((lengths * losses).sum() / 30)


def test_an_overlong_answer_loses_up_to_one():
    found = overlong_penalty(np.array([1, 80, 90, 100]), 100, 0.2)
    np.testing.assert_allclose(found, [0, 0, 0.5, 1])
    assert not overlong_penalty(np.array([100]), 100, 0.0).any()
