"""Clusters of tokens that are sent to an expert as one row, their mean (LSH-MoE, arXiv:2411.08446).

Tokens of one expert with the same locality-sensitive hashes form a cluster. The expert computes its centroid c, and a
token x of it gets `expert(c) + residual (x - c)`. So the exchange has a row for each centroid, each for one expert.
Clusters are those of a rank's tokens; evaluation and generation send each token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config.mappings.experts import Clustering, ExpertsConfig
from jaxpar.config.reading.typed import record_from_plain
from jaxpar.layers.experts.routing import NO_EXPERT, Routing
from jaxpar.layers.experts.rows import NONE, collect, spread
from jaxpar.runtime.passes import ALWAYS_SAVED, Report


@lru_cache(maxsize=1000)
def clustering_of(experts: ExpertsConfig, key: str = "model.experts") -> Clustering | None:
    """The clustering of experts, if any; raises `UserError` for a wrong name or type."""
    return record_from_plain(Clustering, experts.clusters, f"{key}.clusters") if experts.clusters else None


def exchanged_experts(experts: ExpertsConfig) -> tuple[ExpertsConfig, float]:
    """(experts as the exchange sees them, rows of each token that it may send to several ranks): clusters have one
    expert each."""
    clustering = clustering_of(experts)
    if clustering is None:
        return experts, 1.0
    one = ExpertsConfig(experts.count, 1, experts.width, experts.shared)
    return one, clustering.share * experts.per_token


CLUSTERS, MERGED = "experts.clusters", "experts.merged"
"""Names of the reported values: sums over tokens and layers of clusters that are sent in place of tokens, and of
buckets of equal hashes that share one."""
REPORTS = (CLUSTERS, MERGED)

DIMENSIONS = 256
"""Dimensions of a rotated token that a hash looks at, at most."""
SEED = 0x15A8
"""Seed of the rotations, which are the same in all steps and runs."""


class Clusters(NamedTuple):
    """Assignments of a rank's tokens in the order of their clusters, and the clusters."""

    order: Int[Array, " assignments"]
    """The assignment at each position, or `NONE` for invalid ones."""
    position: Int[Array, "tokens chosen"]
    """Position of each assignment in that order, or `NONE`."""
    cluster: Int[Array, " assignments"]
    """Its cluster, or `NONE`."""
    last: Int[Array, " clusters"]
    """The last assignment of each cluster, or `NONE` where there are fewer clusters."""
    size: Int[Array, " clusters"]
    expert: Int[Array, " clusters"]
    """The expert of each cluster, or `NO_EXPERT`."""
    merged: Int[Array, ""]
    """Buckets of equal hashes that share a cluster with others, because there are no places left."""

    @property
    def tokens(self) -> Int[Array, " assignments"]:
        """The token of each assignment, or `NONE`."""
        return self.order // self.position.shape[1]


def cluster_room(experts: ExpertsConfig, share: float, tokens: int, slices: int) -> int:
    """Number of clusters of a rank's tokens: at least one for each expert, at most one for each choice."""
    choices = tokens * experts.per_token
    return slices * ceil(min(choices, max(experts.count, share * choices)) / slices)


type Send = Callable[[jax.Array, Routing, jax.Array, ExpertsConfig], tuple[jax.Array, jax.Array, jax.Array]]
"""The experts of rows with their exchange: (rows, routing, which rows are valid, experts as the exchange sees them) ->
(results, assignments that this rank has handled, rounds)."""


def clustered(
    send: Send,
    experts: ExpertsConfig,
    slices: int,
    layer: Int[Array, ""],
    x: Float[Array, "tokens embed"],
    routing: Routing,
    valid: Bool[Array, " tokens"],
) -> tuple[Float[Array, "tokens embed"], Float[Array, ""], Int[Array, ""], Report]:
    """(results, assignments that this rank has handled, rounds, report), where `send` gets clusters of tokens."""
    clustering = clustering_of(experts)
    assert clustering is not None, "experts whose tokens are sent in clusters"
    room = cluster_room(experts, clustering.share, len(x), slices)
    hashes = hashes_of(x, clustering.hashes, layer, dimensions_of(x.shape[1], experts.count, room))
    clusters = clusters_of(hashes, routing.indices, valid, experts.count, room)
    indices = interleaved(clusters.expert, slices)[:, None]
    of_one = Routing(indices, jnp.ones(indices.shape, jnp.float32), {})
    centroids = centroids_of(clusters, x)
    rows, valid = interleaved(centroids, slices), indices[:, 0] != NO_EXPERT
    results, handled, rounds = send(rows, of_one, valid, exchanged_experts(experts)[0])
    results = interleaved(results, room // slices)
    y = restored(clusters, x, routing.weights, centroids, results, clustering.residual)
    number_of = lambda there: jnp.sum(there).astype(jnp.float32)
    sent = number_of(clusters.expert != NO_EXPERT)
    handled = handled + number_of(clusters.order >= 0) - sent
    return y, handled, rounds, {CLUSTERS: sent, MERGED: clusters.merged.astype(jnp.float32)}


def dimensions_of(embed: int, experts: int, room: int) -> int:
    """Dimensions that a hash looks at, each with two vertices: few enough that buckets of one hash take half of the
    room at most, so that tokens of a cluster have at least one hash in common."""
    return max(1, min(DIMENSIONS, embed, room // (4 * experts)))


def hashes_of(
    x: Float[Array, "tokens embed"], hashes: int, layer: Int[Array, ""] | int, dimensions: int
) -> Int[Array, "tokens hashes"]:
    """Cross-polytope hashes: the coordinate of the largest magnitude of a rotated token, and its sign (Andoni et al.,
    arXiv:1509.02897). Each layer and each hash has a rotation, for which Gaussian matrices stand."""
    x = lax.stop_gradient(x).astype(jnp.float32)
    key = jax.random.fold_in(jax.random.key(SEED), layer)
    rotations = jax.random.normal(key, (x.shape[1], hashes, dimensions), jnp.float32)
    rotated = jnp.einsum("te,ehv->thv", x, rotations, precision="highest")
    best = jnp.argmax(jnp.abs(rotated), axis=2)
    negative = jnp.take_along_axis(rotated, best[:, :, None], axis=2)[:, :, 0] < 0
    return checkpoint_name(2 * best + negative, ALWAYS_SAVED)


def clusters_of(
    hashes: Int[Array, "tokens hashes"],
    indices: Int[Array, "tokens chosen"],
    valid: Bool[Array, " tokens"],
    experts: int,
    room: int,
) -> Clusters:
    """At most `room` clusters, which is at least `experts`, or the number of choices.

    Assignments are sorted by expert and then by the hashes. If there are more buckets than places, places go to those
    that differ from the bucket before in the expert, then in the first hash, in the second and so on; of equally
    different ones to the largest. The others join the cluster before them, with which they share most hashes.
    """
    tokens, chosen = indices.shape
    real = valid[:, None] & (indices != NO_EXPERT)
    keys = jnp.repeat(hashes, chosen, axis=0).T
    keys = jnp.concatenate([jnp.where(real, indices, experts).reshape(1, -1), keys])
    order = jnp.lexsort(keys[::-1])
    keys = keys[:, order]
    there = keys[0] < experts
    assigned = there.sum()
    differs = jnp.pad(keys[:, 1:] != keys[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    level = jnp.where(there & differs.any(axis=0), jnp.argmax(differs, axis=0), len(keys))
    begins, places = level < len(keys), jnp.arange(order.size)
    starts = jnp.where(begins | ~there, places, order.size)
    after = lax.cummin(jnp.append(starts[1:], order.size), reverse=True)
    length = jnp.minimum(after, assigned) - places
    rank = jnp.argsort(jnp.lexsort((-length, level)))
    begins_cluster = begins & (rank < room)
    cluster = jnp.where(there, jnp.cumsum(begins_cluster) - 1, NONE)
    first = jnp.argsort(~begins_cluster, stable=True)[:room]
    used = jnp.arange(room) < begins_cluster.sum()
    end = jnp.where(jnp.arange(room) + 1 < begins_cluster.sum(), jnp.append(first[1:], 0), assigned)
    return Clusters(
        jnp.where(there, order, NONE),
        jnp.where(real, jnp.argsort(order).reshape(tokens, chosen), NONE),
        cluster,
        jnp.where(used, end - 1, NONE),
        jnp.where(used, end - first, 0),
        jnp.where(used, keys[0][first], NO_EXPERT),
        begins.sum() - begins_cluster.sum(),
    )


def centroids_of(clusters: Clusters, x: Float[Array, "tokens embed"]) -> Float[Array, "clusters embed"]:
    """The mean of the tokens of each cluster."""
    rows = spread(x, clusters.tokens, clusters.position).astype(jnp.float32)
    sums = _sums(rows, clusters.cluster, clusters.last)
    return (sums / jnp.maximum(clusters.size, 1)[:, None]).astype(x.dtype)


def restored(
    clusters: Clusters,
    x: Float[Array, "tokens embed"],
    gates: Float[Array, "tokens chosen"],
    centroids: Float[Array, "clusters embed"],
    results: Float[Array, "clusters embed"],
    residual: float,
) -> Float[Array, "tokens embed"]:
    """`sum_i w_i (expert_i(c) + residual (x - c))` over the experts of each token, from the `results` of the experts
    for the centroids c."""
    moved = results.astype(jnp.float32) - residual * centroids.astype(jnp.float32)
    weights = spread(gates.reshape(-1, 1), clusters.order, clusters.position.reshape(-1, 1))
    moved = collect(weights * _members(moved, clusters.cluster, clusters.last), clusters.tokens, clusters.position)
    inputs = jnp.where(clusters.position >= 0, gates, 0).sum(axis=1, keepdims=True) * x.astype(jnp.float32)
    return (moved + residual * inputs).astype(x.dtype)


def interleaved(x: Array, slices: int) -> Array:
    """Rows dealt out to slices in turn, so that each has rows of all experts; of `len(x) // slices` it is the
    inverse."""
    return x.reshape(-1, slices, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


# ---- sums over clusters and back, each the derivative of the other one


@jax.custom_vjp
def _sums(
    rows: Float[Array, "assignments embed"], cluster: Int[Array, " assignments"], last: Int[Array, " clusters"]
) -> Float[Array, "clusters embed"]:
    """The sum of each cluster's rows, by a scan along them: without atomic additions, so always in the same order."""
    begins = cluster != jnp.pad(cluster, (1, 0), constant_values=-2)[:-1]

    def combine(a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return a[0] | b[0], jnp.where(b[0][:, None], b[1], a[1] + b[1])

    _, totals = lax.associative_scan(combine, (begins, rows))
    return _take(totals, last)


@jax.custom_vjp
def _members(
    values: Float[Array, "clusters embed"], cluster: Int[Array, " assignments"], last: Int[Array, " clusters"]
) -> Float[Array, "assignments embed"]:
    """The value of each assignment's cluster."""
    del last
    return _take(values, cluster)


def _take(x: jax.Array, places: jax.Array) -> jax.Array:
    return jnp.where((places >= 0)[:, None], x[jnp.maximum(places, 0)], 0)


_sums.defvjp(
    lambda rows, cluster, last: (_sums(rows, cluster, last), (cluster, last)),
    lambda saved, dy: (_members(dy, *saved), None, None),
)
_members.defvjp(
    lambda values, cluster, last: (_members(values, cluster, last), (cluster, last)),
    lambda saved, dy: (_sums(dy, *saved), None, None),
)
