"""The router's fit: its gradient by differences in float64, its table by counting, and a likelihood that only grows."""

import numpy as np

from jaxpar.data.clusters.ngrams import buckets, grams_of
from jaxpar.evaluation.mixture import nats
from jaxpar.generation.mixture import fit
from jaxpar.generation.mixture.fit import ValidationRows, counted_table, evidence_before, fitted

K = 3


def validation(seed: int, informative: float) -> ValidationRows:
    """Tokens each of which one model predicts well, of which the evidence says more or less."""
    draw = np.random.default_rng(seed)
    right = draw.integers(0, K, 4000)
    scores = np.log(np.where(np.arange(K) == right[:, None], 0.5, 0.05))
    return ValidationRows(informative * (np.arange(K) == right[:, None]) + draw.normal(size=(4000, K)), scores)


def loss(theta: np.ndarray, rows: ValidationRows) -> float:
    logits = theta[0] * rows.evidence + theta[1:]
    odds = np.exp(logits)
    return float(-np.log((odds * np.exp(rows.log_probabilities)).sum(1) / odds.sum(1)).mean())


def test_the_gradient_is_that_of_the_likelihood():
    rows, theta = validation(0, 1.0), np.array([0.7, 0.3, -0.2, 0.1])
    step = 1e-5 * np.eye(len(theta))
    differences = [(loss(theta + one, rows) - loss(theta - one, rows)) / 2e-5 for one in step]
    np.testing.assert_allclose(fit._gradient(theta, rows), differences, atol=1e-9)


def test_evidence_weighs_as_much_as_it_is_worth():
    useful, (scale, bias) = validation(1, 2.0), fitted(validation(0, 2.0))
    assert abs(fitted(validation(0, 0.0))[0]) < 0.1 < scale
    found = nats(ValidationRows(scale * useful.evidence + bias, useful.log_probabilities))
    assert found["top 3"] < min(found["all alike"], *(found[f"model {one} alone"] for one in range(K))) - 0.1
    np.testing.assert_allclose(found["top 3"], loss(np.array([scale, *bias]), useful), rtol=1e-12)
    best = (scale * useful.evidence + bias).argmax(1)
    alone = -np.take_along_axis(useful.log_probabilities, best[:, None], 1).mean()
    np.testing.assert_allclose(found["top 1"], alone, rtol=1e-12)
    again = fitted(validation(0, 2.0))
    assert again[0] == scale and (again[1] == bias).all()


def test_a_table_counts_ngrams_and_evidence_adds_its_rows():
    documents = [[np.array([1, 2, 3, 1, 2])], [np.array([4, 5]), np.array([1])]]
    table = counted_table(documents)
    counts = np.ones((fit.BUCKETS, 2))
    for cluster, texts in enumerate(documents):
        for text in texts:
            for bucket in np.concatenate(buckets(grams_of(text), fit.BUCKETS)):
                counts[bucket, cluster] += 1
    logs = np.log(counts / counts.sum(0))
    np.testing.assert_allclose(table, logs - logs.mean(1, keepdims=True), atol=1e-12)
    row = np.array([1, 2, 9])
    of_tokens = [table[[one[at] for one in buckets(grams_of(row), fit.BUCKETS)]].sum(0) for at in range(2)]
    wanted = [of_tokens[0], (of_tokens[0] + of_tokens[1]) / np.sqrt(2)]
    np.testing.assert_allclose(evidence_before(table, row), wanted, atol=1e-12)
    assert evidence_before(table, row)[1, 0] > evidence_before(table, row)[1, 1], "the first cluster has 1 2"
