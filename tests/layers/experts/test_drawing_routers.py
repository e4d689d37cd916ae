"""Routers that draw, or assign all tokens at once, against their papers' formulas in NumPy's float64: choices, weights,
losses, and gradients by central differences of the formula."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Bool, Float64
from scipy.special import ndtr

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.layers.experts.routers import ROUTERS, options_of
from jaxpar.layers.experts.routing import RouterState, share
from tests.layers.experts.test_routers import ALONE, COUNT, COUNTS, FACTORS, LOGITS, TOKENS, dense, sums_of

DRAW = np.random.default_rng(1)
NOISE, NORMAL = DRAW.standard_normal((2, TOKENS, COUNT))
GUMBEL = DRAW.gumbel(size=(TOKENS, COUNT))
NOISY = ExpertsConfig(count=COUNT, per_token=2, router="noisy_top_k")
DENSE = ExpertsConfig(
    count=COUNT, per_token=2, router="dense_to_sparse", router_options={"anneal_steps": 100, "threshold": 0.05}
)
BASE = ExpertsConfig(count=COUNT, per_token=1, router="base")
TEMPERATURES = {0: 2.0, 50: 1.15, 300: 0.3}
"""Of `DENSE`, by step."""

type Scores = Float64[np.ndarray, "tokens experts"]


def differences(of: Callable[[Scores], float], at: Scores, step: float = 1e-5) -> Scores:
    """The gradient of `of`, by central differences: exact to about 1e-9 in float64."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        more, less = at.copy(), at.copy()
        more[place] += step
        less[place] -= step
        found[place] = (of(more) - of(less)) / (2 * step)
    return found


def noisy_gates(logits: Scores, noise: Scores) -> tuple[Scores, Scores]:
    """(gates, load) of arXiv:1701.06538, equations 3-5 and 8-9, with loops over tokens and experts."""
    deviation = np.log1p(np.exp(noise)) + 1e-2
    h = logits + NORMAL * deviation
    gates, load = np.zeros((2, TOKENS, COUNT))
    for token in range(TOKENS):
        best = np.argsort(-h[token])[:2]
        gates[token, best] = np.exp(h[token, best]) / np.exp(h[token, best]).sum()
        for expert in range(COUNT):
            threshold = np.sort(np.delete(h[token], expert))[-2]
            load[token, expert] = ndtr((logits[token, expert] - threshold) / deviation[token, expert])
    return gates, load


def noisy_loss(gates: Scores, load: Scores) -> float:
    """Equations 6, 7, 10 and 11: squared coefficients of variation of importance and load."""
    variation = lambda x: x.var() / x.mean() ** 2
    return variation(COUNTS @ gates) + variation(COUNTS @ load)


def sparse_gates(logits: Scores, temperature: float) -> tuple[Scores, Bool[np.ndarray, "tokens experts"]]:
    """(gates of all experts, those that are used) of arXiv:2112.14397, section 4.2."""
    heat = np.exp((logits + GUMBEL) / temperature)
    gates = heat / heat.sum(1, keepdims=True)
    return gates, (gates >= options_of(DENSE).threshold) | (gates >= np.sort(gates, axis=1)[:, -2:-1])


def sparse_loss(logits: Scores, temperature: float, used: Bool[np.ndarray, "tokens experts"]) -> float:
    """`E sum f P` of the shares f of what is used, which is fixed, and the mean gates P."""
    gates, choices = sparse_gates(logits, temperature)[0], COUNTS @ used
    return COUNT * ((choices / choices.sum()) * (COUNTS @ gates / COUNTS.sum())).sum()


def objective(options: ExpertsConfig, state: RouterState, logits: jax.Array) -> jax.Array:
    """What is differentiated: weights by `FACTORS`, and the router's loss."""
    router = ROUTERS[options.router]
    routing = router.route(logits, state, options, options_of(options))
    sums = sums_of(routing, jnp.float32(COUNTS))
    loss: Any = share(router.loss, sums, sums, 1) if router.loss else 0.0
    return (jnp.float32(FACTORS) * dense(routing)).sum() + loss


def test_noisy_top_k_and_its_losses_are_those_of_the_paper():
    state = RouterState(noise=jnp.float32(NOISE), drawn=jnp.float32(NORMAL))
    routing = ROUTERS["noisy_top_k"].route(jnp.float32(LOGITS), state, NOISY, options_of(NOISY))
    gates, load = noisy_gates(LOGITS, NOISE)
    np.testing.assert_allclose(dense(routing), gates, atol=1e-5)
    np.testing.assert_allclose(routing.statistics["load"], load, atol=1e-5)
    loss = ROUTERS["noisy_top_k"].loss
    assert loss is not None
    assert float(loss(sums_of(routing, jnp.float32(COUNTS)))) == pytest.approx(noisy_loss(gates, load), rel=1e-4)
    still = ROUTERS["noisy_top_k"].route(jnp.float32(LOGITS), state._replace(drawn=None), NOISY, options_of(NOISY))
    np.testing.assert_array_equal(still.indices, jnp.argsort(-jnp.float32(LOGITS), axis=1)[:, :2])


def test_gradients_of_noisy_top_k_are_those_of_the_paper():
    """With respect to the logits and to those of the deviation, through gates, importance, load and its threshold."""

    def found(logits: jax.Array, noise: jax.Array) -> jax.Array:
        return objective(NOISY, RouterState(noise=noise, drawn=jnp.float32(NORMAL)), logits)

    def wanted(logits: Scores, noise: Scores) -> float:
        gates, load = noisy_gates(logits, noise)
        return (FACTORS * gates).sum() + noisy_loss(gates, load)

    of_logits, of_noise = jax.grad(found, argnums=(0, 1))(jnp.float32(LOGITS), jnp.float32(NOISE))
    np.testing.assert_allclose(of_logits, differences(lambda x: wanted(x, NOISE), LOGITS), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_noise, differences(lambda x: wanted(LOGITS, x), NOISE), rtol=1e-4, atol=1e-5)


def sparse_state(step: int) -> RouterState:
    return RouterState(drawn=jnp.float32(GUMBEL), step=jnp.float32(step))


def test_a_dense_gate_becomes_sparse_with_the_step():
    used = []
    for step, temperature in TEMPERATURES.items():
        routing = ROUTERS["dense_to_sparse"].route(jnp.float32(LOGITS), sparse_state(step), DENSE, options_of(DENSE))
        gates, kept = sparse_gates(LOGITS, temperature)
        np.testing.assert_allclose(dense(routing), np.where(kept, gates, 0), rtol=1e-5)
        used.append(kept.sum())
    assert used[0] > used[1] > used[2] >= 2 * TOKENS
    still = ROUTERS["dense_to_sparse"].route(jnp.float32(LOGITS), RouterState(), DENSE, options_of(DENSE))
    best = np.sort(LOGITS, axis=1)[:, :-3:-1]
    np.testing.assert_array_equal(still.indices, np.argsort(-LOGITS, axis=1)[:, :2])
    heat = np.exp((best - best[:, :1]) / 0.3)
    np.testing.assert_allclose(still.weights, heat / heat.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("step", TEMPERATURES)
def test_the_loss_and_gradients_of_a_gate_that_becomes_sparse_are_those_of_the_paper(step: int):
    temperature, (router, state) = TEMPERATURES[step], (ROUTERS["dense_to_sparse"], sparse_state(step))
    _, used = sparse_gates(LOGITS, temperature)
    assert router.loss is not None
    loss = router.loss(sums_of(router.route(jnp.float32(LOGITS), state, DENSE, options_of(DENSE)), jnp.float32(COUNTS)))
    assert float(loss) == pytest.approx(sparse_loss(LOGITS, temperature, used), rel=1e-5)

    def wanted(logits: Scores) -> float:
        gates, _ = sparse_gates(logits, temperature)
        return (FACTORS * np.where(used, gates, 0)).sum() + sparse_loss(logits, temperature, used)

    found = jax.grad(lambda logits: objective(DENSE, state, logits))(jnp.float32(LOGITS))
    np.testing.assert_allclose(found, differences(wanted, LOGITS), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("train", [True, False], ids=("training", "evaluation"))
def test_base_is_greedy_outside_training_and_weights_by_a_sigmoid(train: bool):
    """A weight is the sigmoid of its logit, so its derivative is `s (1 - s)`, and no other logit has one."""
    state = ALONE._replace(train=train)
    routing = ROUTERS["base"].route(jnp.float32(LOGITS), state, BASE, options_of(BASE))
    real = COUNTS > 0
    experts = np.asarray(routing.indices)[real, 0]
    weights = 1 / (1 + np.exp(-LOGITS[real][np.arange(9), experts]))
    np.testing.assert_allclose(routing.weights[real, 0], weights, rtol=1e-5)
    if train:
        assert np.bincount(experts).max() <= 2
    else:
        np.testing.assert_array_equal(experts, LOGITS[real].argmax(1))
    wanted = np.zeros((9, COUNT))
    wanted[np.arange(9), experts] = FACTORS[real][np.arange(9), experts] * weights * (1 - weights)
    found = jax.grad(lambda logits: objective(BASE, state, logits))(jnp.float32(LOGITS))
    np.testing.assert_allclose(found[real], wanted, rtol=1e-4, atol=1e-6)
