"""Generated text is deterministic, learnable, and of the vocabulary asked for."""

import numpy as np
import pytest

from jaxpar.config.schema import DataConfig
from jaxpar.data.sources import open_data
from jaxpar.data.synthetic import generate
from tests.sentences import refused


def entropy(tokens: np.ndarray, vocab: int, context: int) -> float:
    """Entropy in nats of a token given the `context` tokens before it, from counts."""

    def joint(length: int) -> float:
        """Entropy of `length` tokens in a row."""
        grams = sum(tokens[i : len(tokens) - length + i + 1] * vocab**i for i in range(length))
        shares = np.bincount(grams) / len(grams)
        return float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())

    return joint(context + 1) - (joint(context) if context else 0.0)


@pytest.mark.parametrize("vocab", [2, 3, 50, 50257, 2**20])
def test_tokens_are_below_the_vocabulary_and_its_last_token_ends_each_document(vocab):
    tokens, documents = generate(5000, vocab, 0)
    assert tokens.max() == vocab - 1 and len(tokens) == 5000
    ends = np.flatnonzero(np.diff(documents))
    assert np.flatnonzero(tokens == vocab - 1)[: len(ends)].tolist() == ends.tolist()
    lengths = np.diff(ends)
    assert lengths.min() >= 16 and lengths.max() <= 256 and len(np.unique(lengths)) > 10


def test_context_helps_and_more_context_helps_more():
    tokens, _ = generate(1 << 19, 32, 1)
    none, one, two = (entropy(tokens.astype(np.int64), 32, context) for context in range(3))
    assert none - one > 0.5
    assert one - two > 0.3


def test_training_and_validation_text_differ_and_are_one_language():
    data = open_data(DataConfig(source="synthetic", sequence_length=1024), vocab=32, seed=0)
    train, validation = data.train.row(0)["tokens"], data.validation.row(0)["tokens"]
    assert (train != validation).mean() > 0.5
    assert (data.train.row(1)["tokens"] != train).mean() > 0.5

    def transitions(dataset) -> np.ndarray:
        tokens = dataset.stream.tokens.astype(np.int64)
        counts = np.bincount(tokens[:-1] * 32 + tokens[1:], minlength=32 * 32).reshape(32, 32)
        return counts / counts.sum()

    assert np.abs(transitions(data.train) - transitions(data.validation)).sum() < 0.1


def test_the_default_vocabulary_and_one_that_is_too_small():
    assert open_data(DataConfig(source="synthetic"), vocab=None, seed=0).vocab == 256
    with refused("model.vocab=1", "data.source=synthetic", "too small"):
        open_data(DataConfig(source="synthetic"), vocab=1, seed=0)
