"""Each router against its paper's formula in float64: choices, weights, losses and the gradients of all.

Those that draw, or solve a problem about all tokens, are in `test_drawing_routers.py`."""

from dataclasses import asdict, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.routers import ROUTERS as NAMES
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.experts import routers
from jaxpar.layers.experts.assignment import balanced, within_capacity
from jaxpar.layers.experts.routers import ROUTERS, entropy
from jaxpar.layers.experts.routing import NO_EXPERT, RouterState, Routing, Sums, expert_mask, share, z_loss
from jaxpar.layout.checks.experts import routers_without_gradient
from tests.reference import experts64

TOKENS, COUNT = 12, 8
CASES: dict[str, dict[str, Any]] = {
    "softmax_top_k": {"per_token": 3},
    "top_k_softmax": {"per_token": 2},
    "switch": {"per_token": 1},
    "gshard": {"per_token": 2},
    "sigmoid": {"per_token": 2, "router_options": {"scale": 1.7}},
    "biased_softmax": {"per_token": 2, "router_options": {"scale": 1.7}},
    "epsilon": {"router": "sigmoid", "per_token": 2, "router_options": {"epsilon": 0.1}},
    "sigmoid_top_k": {"per_token": 2},
    "k_top_1": {"per_token": 2},
    "cosine": {"per_token": 2},
    "sam": {"per_token": 2, "router_options": {"groups": 2}},
    "sparse_mixer": {"per_token": 2, "router_options": {"jitter": 0.2}},
    "expert_choice": {"per_token": 2, "router_options": {"force": True}},
    "best groups": {
        "router": "top_k_softmax", "per_token": 3,
        "router_options": {"groups": 4, "groups_per_token": 2, "group_best": 2, "scale": 1.7},
    },
    "groups": {"router": "sigmoid", "per_token": 3, "router_options": {"groups": 4, "groups_per_token": 2}},
}  # fmt: skip
DRAW = np.random.default_rng(0)
LOGITS = DRAW.standard_normal((TOKENS, COUNT))
BIAS = 0.3 * DRAW.standard_normal(COUNT)
IDS = DRAW.integers(0, 500, TOKENS)
FACTORS = DRAW.standard_normal((TOKENS, COUNT))
COUNTS = np.array([1.0] * 9 + [0.0] * 3)
"""The last tokens only pad a row."""


class OneRank:
    """The order of the tokens of a rank that is alone."""

    def gather(self, x: Any) -> Any:
        return x

    local = gather


ALONE = RouterState(bias=jnp.float32(BIAS), valid=jnp.asarray(COUNTS > 0), order=OneRank())


def options_of(name: str) -> ExpertsConfig:
    return ExpertsConfig(**({"count": COUNT, "router": name} | CASES[name]))


def dense(routing: Routing) -> jax.Array:
    """The weight of each expert."""
    return jnp.einsum("tk,tke->te", routing.weights, expert_mask(routing.indices, COUNT))


def sums_of(routing: Routing, counts: Any) -> Sums:
    chosen = counts @ expert_mask(routing.indices, COUNT).sum(1)
    return Sums(counts.sum(), chosen, {name: counts @ value for name, value in routing.statistics.items()})


def test_the_configuration_names_what_the_registry_has():
    assert set(NAMES) == set(ROUTERS)


@pytest.mark.parametrize("name", CASES)
def test_weights_losses_and_gradients_are_those_of_the_paper(name: str):
    options = options_of(name)
    router = ROUTERS[options.router]

    def found(logits: jax.Array) -> tuple[jax.Array, Any]:
        routing = router.route(logits, ALONE, options, routers.options_of(options))
        sums = sums_of(routing, jnp.float32(COUNTS))
        loss = share(router.loss, sums, sums, 1) if router.loss else 0.0
        return (jnp.float32(FACTORS) * dense(routing)).sum() + loss, (dense(routing), loss)

    def wanted(logits: Any) -> tuple[Any, Any]:
        weights, statistics = experts64.route(logits, IDS, BIAS, asdict(options) | {"counts": jnp.asarray(COUNTS)})
        loss = experts64.balance(weights, statistics, jnp.asarray(COUNTS), asdict(options))
        return (FACTORS * weights).sum() + loss, (weights, loss)

    (_, ours), gradient = jax.value_and_grad(found, has_aux=True)(jnp.float32(LOGITS))
    with jax.enable_x64(True):
        (_, theirs), of_paper = jax.value_and_grad(wanted, has_aux=True)(jnp.asarray(LOGITS))
        theirs, of_paper = jax.tree.map(np.asarray, (theirs, of_paper))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, theirs)
    np.testing.assert_allclose(gradient, of_paper, rtol=1e-4, atol=1e-6)


FAR = np.array([[-200.0, -150.0, -300.0, 5.0], [-101.0, -100.0, -300.0, -90.0], [-2.0, -1.0, 0.5, 5.0]])
"""Logits of which sigmoids, of the first row those chosen and of the second one all, are 0 in float32."""


def test_weights_of_sigmoids_that_underflow_are_those_of_the_formula():
    """A bias chooses such experts. Gradients are finite."""
    options = ExpertsConfig(count=4, per_token=2, router="sigmoid", router_options={"scale": 1.7})
    state = RouterState(bias=jnp.float32([3.0, 3.0, 0.0, 0.0]))

    def found(logits: jax.Array) -> tuple[jax.Array, Routing]:
        routing = ROUTERS["sigmoid"].route(logits, state, options, routers.options_of(options))
        return (routing.weights * jnp.float32([1.0, 2.0])).sum() + routing.statistics["probabilities"].max(), routing

    (_, routing), gradient = jax.value_and_grad(found, has_aux=True)(jnp.float32(FAR))
    assert np.isfinite(gradient).all()
    assert np.sort(routing.indices, axis=1).tolist() == [[0, 1], [0, 1], [0, 1]]
    scores = 1 / (1 + np.exp(-FAR))
    own = np.take_along_axis(scores, np.asarray(routing.indices), axis=1)
    np.testing.assert_allclose(routing.weights, 1.7 * own / own.sum(axis=1, keepdims=True), rtol=1e-5)
    of_all = scores / scores.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(routing.statistics["probabilities"], of_all, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("per_token", [1, 2])
@pytest.mark.parametrize("router", ["top_k_softmax", "noisy_top_k", "sigmoid", "softmax_top_k", "cosine"])
def test_a_run_says_which_routers_the_loss_of_the_task_does_not_train(router: str, per_token: int):
    """Those whose weights have no derivative."""
    options = ExpertsConfig(count=COUNT, per_token=per_token, router=router)
    state = ALONE._replace(noise=jnp.zeros((TOKENS, COUNT)))
    of = lambda logits: (
        jnp.float32(FACTORS) * dense(ROUTERS[router].route(logits, state, options, routers.options_of(options)))
    ).sum()
    untrained = not np.abs(jax.grad(of)(jnp.float32(LOGITS))).max() > 1e-6
    said = routers_without_gradient(ModelConfig(experts=options))
    assert len(said) == untrained == (per_token == 1 and router in ("top_k_softmax", "noisy_top_k", "sigmoid"))
    assert all("model.experts.per_token: 1" in one and router in one for one in said)


def test_a_hash_chooses_by_the_token_alone():
    options = ExpertsConfig(count=COUNT, per_token=2, router="hash")
    state = RouterState(ids=jnp.asarray(IDS))
    routing = ROUTERS["hash"].route(jnp.zeros(()), state, options, routers.options_of(options))
    weights, _ = experts64.route(jnp.zeros((TOKENS, COUNT)), jnp.asarray(IDS), None, asdict(options))
    np.testing.assert_allclose(dense(routing), weights)
    many = ROUTERS["hash"].route(jnp.zeros(()), RouterState(ids=jnp.arange(8000)), options, routers.options_of(options))
    counts = np.bincount(np.asarray(many.indices).ravel(), minlength=COUNT)
    assert counts.min() > 0.9 * counts.mean()


@pytest.mark.parametrize("kind", ["drawn", "all alike", "one is best for all", "ties"])
def test_an_auction_gives_each_expert_as_many_tokens_with_almost_the_best_sum(kind: str):
    """Against the Hungarian algorithm on as many copies of each expert as it has places."""
    draw, tokens = np.random.default_rng(3), 90
    scores = draw.standard_normal((tokens, COUNT))
    if kind == "all alike":
        scores = np.ones((tokens, COUNT))
    if kind == "one is best for all":
        scores = 0.01 * scores + 5 * (np.arange(COUNT) == 3)
    if kind == "ties":
        scores = np.round(scores)
    counts = np.arange(tokens) < 85
    owner = np.asarray(jax.jit(balanced)(jnp.float32(scores), jnp.asarray(counts)))
    room = -(-85 // COUNT)
    assert (owner[~counts] == NO_EXPERT).all() and (owner[counts] >= 0).all()
    assert np.bincount(owner[counts], minlength=COUNT).max() <= room
    rows, columns = linear_sum_assignment(-np.repeat(scores[counts], room, axis=1))
    best, found = (
        np.repeat(scores[counts], room, axis=1)[rows, columns].mean(),
        scores[np.arange(85), owner[:85]].mean(),
    )
    assert best - found <= np.ptp(scores[counts]) / 256 + 1e-6


def test_assignments_beyond_the_capacity_of_an_expert_are_the_last_ones():
    indices = np.random.default_rng(1).integers(0, 4, (20, 1))
    indices[3] = NO_EXPERT
    counts = np.arange(20) != 5
    kept = np.asarray(within_capacity(jnp.asarray(indices), jnp.asarray(counts), 4, 0.8))
    seen = dict.fromkeys(range(4), 0)
    for token, (expert,) in enumerate(indices):
        real = bool(counts[token]) and expert != NO_EXPERT
        assert kept[token, 0] == (real and seen[expert] < np.ceil(0.8 * 19 / 4))
        if real:
            seen[expert] += 1


def test_shares_of_ranks_add_up_to_the_loss_and_its_gradient():
    options = replace(options_of("softmax_top_k"), per_token=2)
    router, ranks = ROUTERS["softmax_top_k"], 3
    assert router.loss is not None

    def split(logits: jax.Array) -> jax.Array:
        parts = [
            sums_of(router.route(own, RouterState(), options, routers.options_of(options)), jnp.float32(counts))
            for own, counts in zip(jnp.split(logits, ranks), np.split(COUNTS, ranks), strict=True)
        ]
        whole = jax.lax.stop_gradient(jax.tree.map(lambda *each: sum(each), *parts))
        return sum(share(router.loss, own, whole, ranks) for own in parts)

    def together(logits: jax.Array) -> jax.Array:
        sums = sums_of(router.route(logits, RouterState(), options, routers.options_of(options)), jnp.float32(COUNTS))
        return router.loss(sums)

    for one, other in zip(*(jax.value_and_grad(of)(jnp.float32(LOGITS)) for of in (split, together)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_z_loss_and_entropy():
    total = np.log(np.exp(LOGITS).sum(1))
    assert float(z_loss(jnp.float32(LOGITS), jnp.float32(COUNTS))) == pytest.approx((COUNTS * total**2).sum(), rel=1e-5)
    p = np.exp(LOGITS - total[:, None])
    np.testing.assert_allclose(entropy(jnp.float32(LOGITS)), -(p * np.log(p)).sum(1), rtol=1e-5)
