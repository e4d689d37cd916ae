"""Fits the router of a mixture: a table of naive Bayes from what the models were trained on, scaled on validation text.

The table has the logarithms of how often each cluster's training tokens have an n-gram. Its scale, and a bias
of each model, maximize the likelihood of validation text under the mixture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxpar.data.clusters.ngrams import buckets, grams_of

BUCKETS = 2**14
"""Buckets of n-grams of a router."""
ROUNDS = 400
"""Steps of gradient descent."""
RATE = 0.05
_SMOOTHING = 1.0


class ValidationRows(NamedTuple):
    """Rows of validation text, for which the models' probabilities are known; tokens of all rows side by side."""

    evidence: Float[np.ndarray, "token k"]
    """The evidence of the tokens before each one, by `counted_table`, divided by the root of how many they are."""
    log_probabilities: Float[np.ndarray, "token k"]
    """The log-probability of each token, in nats, by each model."""


def counted_table(clusters: Sequence[Iterable[np.ndarray]]) -> Float[np.ndarray, "bucket k"]:
    """Log-probability of each bucket in each cluster, less its mean over clusters; from the documents of each."""
    occurrences = np.full((BUCKETS, len(clusters)), _SMOOTHING)
    for cluster, documents in enumerate(clusters):
        for document in documents:
            occurrences[:, cluster] += np.bincount(
                np.concatenate(buckets(grams_of(document), BUCKETS)), minlength=BUCKETS
            )
    logs = np.log(occurrences / occurrences.sum(0))
    return logs - logs.mean(1, keepdims=True)


def evidence_before(table: Float[np.ndarray, "bucket k"], row: Int[np.ndarray, " token"]) -> np.ndarray:
    """[token but the first, k]: the evidence of the tokens before each token of a row."""
    grams = np.stack(buckets(grams_of(row[:-1]), len(table)), axis=1)
    return table[grams].sum(1).cumsum(0) / np.sqrt(np.arange(1, len(row)))[:, None]


def fitted(validation: ValidationRows) -> tuple[float, Float[np.ndarray, " k"]]:
    """The scale of the evidence and the biases whose mixture gives the text the largest likelihood (Adam,
    arXiv:1412.6980)."""
    theta = np.append(np.full(1, 0.1), np.zeros(validation.evidence.shape[1]))
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    for step in range(1, ROUNDS + 1):
        gradient = _gradient(theta, validation)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        theta = theta - RATE * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return float(theta[0]), theta[1:]


def _gradient(theta: np.ndarray, validation: ValidationRows) -> np.ndarray:
    """The gradient of the mean negative log-likelihood with respect to the scale of the evidence and the biases."""
    logits = theta[0] * validation.evidence + theta[1:]
    prior = _softmax(logits)
    posterior = _softmax(logits + validation.log_probabilities)
    of_logits = (prior - posterior) / len(logits)
    return np.append((of_logits * validation.evidence).sum(), of_logits.sum(0))


def _softmax(logits: np.ndarray) -> np.ndarray:
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)
