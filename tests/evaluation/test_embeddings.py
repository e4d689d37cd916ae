"""A document's vector is the mean of its tokens' last hidden states, whatever it is read with, and makes clusters."""

from pathlib import Path

import jax
import numpy as np
import pytest

from jaxpar.evaluation import embeddings
from jaxpar.evaluation.embeddings import TOKENS, embeddings_of, vectors_by
from jaxpar.generation.placed_model import open_model
from tests.data.folders import prepared, texts, write_tokenizer
from tests.interop.folders import copy_of, rewrite
from tests.sentences import refused

MODEL = str(Path(__file__).parents[1] / "goldens" / "llama")


@pytest.mark.long
def test_a_vector_is_of_the_document_alone_and_not_of_its_padding(monkeypatch: pytest.MonkeyPatch):
    config, source = open_model(MODEL, ())
    embed = vectors_by(config, source)
    draw = np.random.default_rng(0)
    documents = [draw.integers(0, 61, size) for size in (3, 40, TOKENS + 9)]
    vectors = embed(documents)
    np.testing.assert_allclose((vectors**2).sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(embed(documents[1:2])[0], vectors[1], atol=1e-5)
    np.testing.assert_allclose(embed([documents[2][:TOKENS]])[0], vectors[2], atol=1e-5)
    many = embed([documents[0]] * (3 * len(jax.devices()) * 8 + 1))
    np.testing.assert_allclose(many - vectors[0], 0, atol=1e-5)
    monkeypatch.setattr(embeddings, "TOKENS", 64)
    np.testing.assert_allclose(vectors_by(config, source)(documents[:2]), vectors[:2], atol=1e-5)


def test_a_model_of_another_vocabulary_is_refused(tmp_path: Path):
    folder = prepared(tmp_path / "tokens", texts(6)).path
    with refused("--cluster-by", "vocabulary of 61", "one of 257", "same tokenizer"):
        embeddings_of(MODEL, folder)
    model = tmp_path / "model"
    wide = {name: np.zeros((257, 32), "f4") for name in ("model.embed_tokens.weight", "lm_head.weight")}
    rewrite(copy_of("llama", model, vocab_size=257), {**wide})
    assert embeddings_of(str(model), folder)[1]
    write_tokenizer(model / "tokenizer.json", more=("<|other|>",))
    with refused("--cluster-by", "different tokenizers"):
        embeddings_of(str(model), folder)
    write_tokenizer(model / "tokenizer.json")
    assert embeddings_of(str(model), folder)[1]
