"""A document's vector is the mean of its tokens' last hidden states, whatever it is read with, and makes clusters."""

from pathlib import Path

import jax
import numpy as np
import pytest

from jaxpar.evaluation import embeddings
from jaxpar.evaluation.embeddings import TOKENS, embeddings_of

MODEL = str(Path(__file__).parents[1] / "goldens" / "llama")


@pytest.mark.long
def test_a_vector_is_of_the_document_alone_and_not_of_its_padding(monkeypatch: pytest.MonkeyPatch):
    embed, digest = embeddings_of(MODEL)
    draw = np.random.default_rng(0)
    documents = [draw.integers(0, 61, size) for size in (3, 40, TOKENS + 9)]
    vectors = embed(documents)
    np.testing.assert_allclose((vectors**2).sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(embed(documents[1:2])[0], vectors[1], atol=1e-5)
    np.testing.assert_allclose(embed([documents[2][:TOKENS]])[0], vectors[2], atol=1e-5)
    many = embed([documents[0]] * (3 * len(jax.devices()) * 8 + 1))
    np.testing.assert_allclose(many - vectors[0], 0, atol=1e-5)
    assert digest == embeddings_of(MODEL)[1]
    monkeypatch.setattr(embeddings, "TOKENS", 64)
    np.testing.assert_allclose(embeddings_of(MODEL)[0](documents[:2]), vectors[:2], atol=1e-5)
