"""Clusters of tokens that are sent as one row, against loops in float64."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.layers.experts.clusters import (
    Clusters,
    centroids_of,
    cluster_room,
    clusters_of,
    dimensions_of,
    exchanged_experts,
    hashes_of,
    interleaved,
    restored,
)
from jaxpar.layers.experts.messages import rows_sent
from jaxpar.layers.experts.routing import NO_EXPERT

TOKENS, CHOSEN, EXPERTS, EMBED = 40, 2, 4, 8
DRAW = np.random.default_rng(3)
X = DRAW.standard_normal((TOKENS, EMBED))
INDICES = np.argsort(DRAW.random((TOKENS, EXPERTS)))[:, :CHOSEN]
INDICES[7, 1] = -1
GATES = DRAW.random((TOKENS, CHOSEN))
COUNTS = np.arange(TOKENS) < 35
HASHES = DRAW.integers(0, 3, (TOKENS, 3))


def members_of(room: int) -> dict[tuple[int, ...], list[tuple[int, int]]]:
    """(token, choice) of each cluster, from the definition."""
    buckets: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for token, choice in np.ndindex(INDICES.shape):
        if COUNTS[token] and INDICES[token, choice] >= 0:
            buckets.setdefault((int(INDICES[token, choice]), *HASHES[token].tolist()), []).append((token, choice))
    ordered = sorted(buckets)
    unlike = lambda a, b: next(place for place in range(len(a)) if a[place] != b[place])
    level = {b: unlike(a, b) for a, b in pairwise(ordered)} | {ordered[0]: 0}
    kept = sorted(ordered, key=lambda one: (level[one], -len(buckets[one]), one))[:room]
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    last = ordered[0]
    for one in ordered:
        last = one if one in kept else last
        found.setdefault(last, []).extend(buckets[one])
    return found


def found_clusters(room: int) -> Clusters:
    function = jax.jit(clusters_of, static_argnums=(3, 4))
    return jax.device_get(function(jnp.asarray(HASHES), jnp.asarray(INDICES), jnp.asarray(COUNTS), EXPERTS, room))


@pytest.mark.parametrize("room", [EXPERTS, 17, 80])
def test_clusters_are_buckets_of_an_expert_and_the_most_unlike_and_largest_have_places(room: int):
    clusters, wanted = found_clusters(room), members_of(room)
    used = int((clusters.expert >= 0).sum())
    assert used == len(wanted) <= room and clusters.expert[:used].tolist() == [key[0] for key in wanted]
    whole = len(members_of(TOKENS * CHOSEN))
    assert clusters.merged == whole - used and (whole > 17 > EXPERTS)
    for number, members in enumerate(wanted.values()):
        places = np.flatnonzero(clusters.cluster == number)
        assert {divmod(int(clusters.order[place]), CHOSEN) for place in places} == set(members)
        assert clusters.size[number] == len(members) and clusters.last[number] == places.max()


@pytest.mark.parametrize("room", [EXPERTS, 17, 80])
def test_tokens_get_the_result_of_their_centroid_and_their_residual(room: int):
    """And the derivative is that of the formula in float64."""
    clusters, members = jax.tree.map(jnp.asarray, found_clusters(room)), list(members_of(room).values())
    matrices = DRAW.standard_normal((EXPERTS + 1, EMBED, EMBED))
    matrices[-1] = 0.0  # of places without a cluster
    factors = DRAW.standard_normal((TOKENS, EMBED))

    def ours(x: Any, gates: Any) -> Any:
        centroids = centroids_of(clusters, x)
        results = jnp.tanh(jnp.einsum("ce,cef->cf", centroids, jnp.float32(matrices)[clusters.expert]))
        return jnp.sum(restored(clusters, x, gates, centroids, results, 0.7) * jnp.float32(factors))

    def formula(x: Any, gates: Any) -> Any:
        """One row of `of` for each choice, 1 at its cluster."""
        tokens, choices = np.array([one for own in members for one in own]).T
        of = np.repeat(np.eye(len(members)), [len(own) for own in members], axis=0)
        centroids = of.T @ x[tokens] / of.sum(axis=0)[:, None]
        results = jnp.tanh(jnp.einsum("ce,cef->cf", centroids, matrices[[INDICES[own[0]] for own in members]]))
        each = of @ (results - 0.7 * centroids) + 0.7 * x[tokens]
        return jnp.sum(gates[tokens, choices][:, None] * each * factors[tokens])

    found, slopes = jax.jit(jax.value_and_grad(ours, argnums=(0, 1)))(jnp.float32(X), jnp.float32(GATES))
    with jax.enable_x64(True):
        wanted, exact = jax.jit(jax.value_and_grad(formula, argnums=(0, 1)))(jnp.asarray(X), jnp.asarray(GATES))
        wanted, exact = float(wanted), jax.tree.map(np.asarray, exact)
    assert float(found) == pytest.approx(wanted, rel=1e-5)
    for one, other in zip(slopes, exact, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_hash_is_the_nearest_vertex_of_a_rotated_cross_polytope():
    """The same in every run; a token and its multiple have one hash, its opposite has the opposite vertex."""
    x = jnp.float32(X)
    found = hashes_of(x, 5, 0, EMBED)
    assert found.shape == (TOKENS, 5) and found.min() >= 0 and found.max() < 2 * EMBED
    np.testing.assert_array_equal(found, hashes_of(3 * x, 5, 0, EMBED))
    np.testing.assert_array_equal(found ^ 1, hashes_of(-x, 5, 0, EMBED))
    assert (found != hashes_of(x, 5, 1, EMBED)).mean() > 0.5, "another layer has another rotation"
    near = hashes_of(x + 0.01 * jnp.float32(DRAW.standard_normal(X.shape)), 5, 0, EMBED)
    assert (found == near).mean() > 0.9


def test_room_and_bytes_are_a_share_of_the_choices():
    experts = ExpertsConfig(count=8, per_token=2, clusters={"share": 0.25})
    assert cluster_room(experts, 0.25, 1000, 3) == 501 and cluster_room(experts, 0.25, 4, 1) == 8
    assert cluster_room(experts, 0.25, 2, 1) == 4, "fewer choices than experts"
    few = clusters_of(jnp.zeros((2, 3), jnp.int32), jnp.asarray([[0, 1], [0, 5]]), jnp.ones(2, bool), 8, 4)
    assert sorted(np.asarray(few.expert).tolist()) == [NO_EXPERT, 0, 1, 5]
    assert dimensions_of(128, 8, 512) == 16 and dimensions_of(128, 8, 10**6) == 128 and dimensions_of(128, 8, 8) == 1
    one, rows = exchanged_experts(experts)
    assert rows == 0.5
    for exchange, factor in (("all_to_all", 0.5), ("all_gather", 0.5)):
        assert rows_sent(exchange, experts, 1.5, 4, 2) == pytest.approx(factor * rows_sent(exchange, one, 1.5, 4, 2))
    x = jnp.arange(12)
    np.testing.assert_array_equal(interleaved(interleaved(x, 3), 4), x)
    assert interleaved(x, 3)[:4].tolist() == [0, 3, 6, 9]
