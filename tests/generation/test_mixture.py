"""A mixture's probabilities are the models' by the router's weights, on any layout, in scores and in continuations."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from jaxpar.data.clusters.ngrams import buckets, grams_of
from jaxpar.generation import scorer
from jaxpar.generation.generator import Generator
from jaxpar.generation.mixture import router
from jaxpar.generation.mixture.functions import MODELS, ROUTER
from jaxpar.generation.mixture.router import LAYOUT, Mixing, RouterWeights
from jaxpar.generation.placed_model import PlacedModel
from jaxpar.generation.scorer import Scorer
from tests.generation.test_generator import LAYOUTS, log_probabilities, run_of
from tests.small_run import SmallRun

MODEL = {"vocab": 61}
TOLERANCE = 1e-5
PROMPTS, NEW = ([5, 9, 3], [7] * 11, [1, 2, 3, 4, 5, 6, 60], list(range(3, 43))), 6
"""The last one reaches the parts of several context ranks."""


def small_router(k: int) -> RouterWeights:
    """A router that changes its mind often."""
    draw = np.random.default_rng(7)
    return RouterWeights(draw.normal(0, 2, (64, k)).astype(np.float32), draw.normal(0, 1, k).astype(np.float32))


def weights_of(run: SmallRun) -> list[Any]:
    """The weights of two models, the same on every layout, which do not predict all tokens alike."""
    weights = run.step.residency.initial_state().master
    weights = weights | {"head": jax.tree.map(lambda leaf: 8 * leaf, weights["head"])}
    return [weights, jax.tree.map(lambda leaf: -leaf, weights)]


def placed(layout: str, top: int) -> PlacedModel:
    run = run_of(MODEL, LAYOUTS[layout])
    where = jax.tree.map(lambda part: NamedSharding(run.step.mesh, part), LAYOUT)
    weights: Any = {MODELS: weights_of(run), ROUTER: jax.tree.map(jax.device_put, small_router(2), where)}
    return PlacedModel(run.config, run.step.mesh, weights, mixing=Mixing(2, top))


def weights_after(row: Sequence[int], top: int, k: int = 2) -> np.ndarray:
    """[token, model] in float64: the weights of the models after each token of a text."""
    weights = jax.tree.map(lambda leaf: leaf.astype(np.float64), small_router(k))
    grams = np.stack(buckets(grams_of(np.array(row)), len(weights.table)), axis=1)
    evidence = np.cumsum(weights.table[grams].sum(1), axis=0) / np.sqrt(np.arange(1, len(row) + 1))[:, None]
    odds = np.exp(evidence + weights.bias)
    least = np.sort(odds, axis=1)[:, -top][:, None]
    odds = np.where(odds >= least, odds, 0)
    return odds / odds.sum(1, keepdims=True)


@functools.cache
def by_hand(rows: tuple[tuple[int, ...], ...], top: int) -> list[np.ndarray]:
    """[token, vocab] of each row: log-probabilities of the mixture, in float64 from each model's training forward."""
    run = run_of(MODEL, {})
    of_models = np.exp([log_probabilities(run, one, list(map(list, rows))) for one in weights_of(run)])
    return [
        np.log(np.einsum("mtv,tm->tv", of_models[:, number, : len(row), : MODEL["vocab"]], weights_after(row, top)))
        for number, row in enumerate(rows)
    ]


@pytest.mark.matrix(quick=(), ci=1)
@pytest.mark.parametrize(("layout", "top"), [("one_device", 1), ("split", 2), ("tensor4", 1), ("context4", 2)])
def test_tokens_and_scores_are_those_of_the_mixed_probabilities(layout: str, top: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scorer, "TILE_BYTES", 2**12)  # several tiles of tokens
    model = placed(layout, top)
    generator = Generator(model.config, model.mesh, model.weights, mixing=model.mixing)
    found = generator.continued(PROMPTS, NEW)
    rows = tuple((*prompt, *one.tokens.tolist()) for prompt, one in zip(PROMPTS, found, strict=True))
    wanted = by_hand(rows, top)
    for prompt, one, after in zip(PROMPTS, found, wanted, strict=True):
        after = after[len(prompt) - 1 : -1]
        assert one.tokens.tolist() == after.argmax(axis=-1).tolist()
        np.testing.assert_allclose(one.log_probabilities, after.max(axis=-1), atol=TOLERANCE, rtol=TOLERANCE)
    for row, one, after in zip(rows, Scorer(model).scored(rows), wanted, strict=True):
        of_labels = np.take_along_axis(after[:-1], np.array(row[1:])[:, None], axis=-1)[:, 0]
        np.testing.assert_allclose(one.log_probabilities, of_labels, atol=TOLERANCE, rtol=TOLERANCE)
        assert one.likeliest.tolist() == (after[:-1].argmax(axis=-1) == row[1:]).tolist()
        np.testing.assert_allclose(generator.scored(row), one.log_probabilities, atol=TOLERANCE, rtol=TOLERANCE)


def test_weights_sum_to_one_and_top_one_is_a_model_alone():
    with jax.enable_x64(True):
        weights = RouterWeights(*(jnp.asarray(leaf, "float64") for leaf in small_router(3)))
        rows = jnp.asarray(np.random.default_rng(0).integers(0, 61, (2, 40)), "int32")
        evidence = jnp.cumsum(router.evidence_of_tokens(weights, rows), axis=1)
        numbers = jnp.broadcast_to(jnp.arange(1, 41), rows.shape)
        of_models = jax.nn.log_softmax(jnp.asarray(np.random.default_rng(1).normal(size=(3, 2, 40, 61))), axis=-1)
        for top in (1, 2, 3):
            logs = router.log_weights(weights, evidence, numbers, top)
            for row in range(2):
                np.testing.assert_allclose(np.exp(logs[row]), weights_after(rows[row].tolist(), top, 3), atol=1e-12)
            np.testing.assert_allclose(np.exp(logs).sum(-1), 1, atol=1e-12)
            assert ((np.asarray(logs) > -np.inf).sum(-1) == top).all()
            together = np.exp(router.mixed(of_models, logs))
            np.testing.assert_allclose(together.sum(-1), 1, atol=1e-12)
            by_hand = np.einsum("mrtv,rtm->rtv", np.exp(of_models), np.exp(logs))
            np.testing.assert_allclose(together, by_hand, atol=1e-12)
        chosen = np.asarray(router.log_weights(weights, evidence, numbers, 1)).argmax(-1)
        alone = np.take_along_axis(np.asarray(of_models), chosen[None, ..., None], axis=0)[0]
        np.testing.assert_allclose(
            router.mixed(of_models, router.log_weights(weights, evidence, numbers, 1)), alone, atol=1e-12
        )


def test_a_prompt_read_at_once_or_token_by_token_gives_one_state():
    weights = small_router(3)
    rows = jnp.asarray(np.random.default_rng(0).integers(0, 61, (2, 10)), "int32")
    state = router.read_prompts(weights, rows, jnp.array([1, 3]))
    for row, tokens in enumerate((1, 3)):
        one = router.RouterState(jnp.zeros((1, 3)), jnp.full((1, 2), -1))
        for token in rows[row, :tokens]:
            one = router.read_tokens(weights, one, token[None])
        np.testing.assert_allclose(state.evidence[row], one.evidence[0], rtol=1e-5)
        assert state.last[row].tolist() == one.last[0].tolist()
