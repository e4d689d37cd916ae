"""Balanced k-means over vectors of length 1: no cluster is much larger than another."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Int64

ROUNDS = 20
"""Most rounds of new centers."""
SLACK = 0.01
"""Share of its size by which a cluster may exceed an equal share."""

type Vectors = Float32[np.ndarray, "document dim"]
type Clusters = Int64[np.ndarray, " document"]


def centers_of(vectors: Vectors, sizes: Int64[np.ndarray, " document"], k: int, seed: int) -> Vectors:
    """The centers of k balanced clusters, of length 1 (spherical k-means, begun as k-means++, arXiv:cs/0703125).

    Args:
        vectors: of length 1, at least k.
        sizes: the tokens of each document.
        k: the number of clusters.
        seed: determines the centers.
    """
    draw = np.random.default_rng(seed)
    centers = _first_centers(vectors, k, draw)
    before = np.full(len(vectors), -1)
    for _ in range(ROUNDS):
        clusters = balanced(vectors @ centers.T, sizes)
        if (clusters == before).all():
            break
        before = clusters
        centers = np.stack([normalized(vectors[clusters == one].sum(0)) for one in range(k)])
    return centers


def balanced(similarity: Float32[np.ndarray, "document cluster"], sizes: Int64[np.ndarray, " document"]) -> Clusters:
    """The cluster of each document: the most similar one that has room for it, or the smallest where none has.

    Documents that lose most by their second choice are first. A cluster has room for an equal share of the tokens and
    `SLACK`; it has at most that or, where none had room, an equal share and a document. No cluster is empty.
    """
    k = similarity.shape[1]
    assert len(similarity) >= k, "a document for each cluster"
    limit = sizes.sum() / k * (1 + SLACK)
    order = np.argsort(-similarity, axis=1, kind="stable")
    best = -np.sort(-similarity, axis=1)
    clusters, room = np.empty(len(sizes), np.int64), np.full(k, float(limit))
    for document in np.argsort(best[:, 1] - best[:, 0], kind="stable").tolist():
        size = sizes[document]
        cluster = next((one for one in order[document].tolist() if room[one] >= size), int(room.argmax()))
        clusters[document] = cluster
        room[cluster] -= size
    return _without_empty(clusters, similarity)


def normalized(vector: np.ndarray) -> np.ndarray:
    """Vectors with length 1 in the last dim; zeros stay."""
    length = np.sqrt((vector.astype(np.float64) ** 2).sum(-1, keepdims=True))
    return (vector / np.where(length > 0, length, 1)).astype(np.float32)


def _first_centers(vectors: Vectors, k: int, draw: np.random.Generator) -> Vectors:
    """Vectors drawn by their squared distance from those drawn before."""
    chosen = [int(draw.integers(len(vectors)))]
    distance = np.full(len(vectors), np.inf)
    while len(chosen) < k:
        distance = np.minimum(distance, np.maximum(1 - (vectors @ vectors[chosen[-1]]).astype(np.float64), 0))
        distance[chosen] = 0
        total = distance.sum()
        others = np.setdiff1d(np.arange(len(vectors)), chosen)
        chosen.append(int(draw.choice(len(vectors), p=distance / total) if total > 0 else others[0]))
    return vectors[chosen]


def _without_empty(clusters: Clusters, similarity: np.ndarray) -> Clusters:
    """Clusters of which an empty one got, of the cluster with most documents, the document most similar to it."""
    k = similarity.shape[1]
    for empty in np.setdiff1d(np.arange(k), clusters).tolist():
        largest = int(np.bincount(clusters, minlength=k).argmax())
        members = np.flatnonzero(clusters == largest)
        clusters[members[similarity[members, empty].argmax()]] = empty
    return clusters
