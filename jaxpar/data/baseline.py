"""The baseline: a bigram model of the same data, scored on the same tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from jaxpar.config.errors import UserError
from jaxpar.data.loader import Batch
from jaxpar.data.stream import TokenStream

ALPHAS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""Amounts of additive smoothing to choose from."""
NOTHING_COUNTED = (
    "evaluation.batches: the held-out rows have no token that the loss counts; expected more held-out data, a longer "
    "data.sequence_length, or evaluation.batches: 0"
)
"""A single token for every validation document leaves nothing to predict."""
FIT_TOKENS = 1 << 25
"""Most tokens that the model is fit on, from the start of the training stream."""


def bigram_loss(train: TokenStream, batches: Iterable[Batch], vocab: int) -> float:
    """Loss of a bigram model in nats per token, over the tokens that the batches score, in float64.

    The model is `p(b | a) = (count(ab) + alpha) / (count(a) + alpha * vocab)` with the counts of the training stream
    and the `alpha` of `ALPHAS` that predicts the training stream best when each pair is left out in turn; held-out
    data does not affect it.

    Args:
        train: the stream to count.
        batches: the batches to score: each pair (`tokens`, `labels`) where `mask` is set.
        vocab: size of the vocabulary, the padding of the model's table not included.

    Raises:
        UserError: the batches score no token.
    """
    model = _fit(train, vocab)
    total, scored = 0.0, 0
    for batch in batches:
        counted = batch["mask"] > 0
        total -= model.log_probabilities(batch["tokens"][counted], batch["labels"][counted]).sum()
        scored += int(counted.sum())
    if scored == 0:
        raise UserError(NOTHING_COUNTED)
    return float(total / scored)


@dataclass(frozen=True)
class _Bigrams:
    """Counts of pairs and of their first tokens."""

    keys: Int64[np.ndarray, " pairs"]
    """`first * vocab + second` of each pair that was seen, sorted."""
    occurrences: Int64[np.ndarray, " pairs"]
    firsts: Int64[np.ndarray, " vocab"]
    alpha: float

    def log_probabilities(self, first: np.ndarray, second: np.ndarray) -> Float64[np.ndarray, " n"]:
        """Logarithm of `p(second | first)`."""
        vocab = len(self.firsts)
        keys = first.astype(np.int64) * vocab + second
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        occurrences = np.where(self.keys[places] == keys, self.occurrences[places], 0)
        return np.log((occurrences + self.alpha) / (self.firsts[first] + self.alpha * vocab))


def _fit(train: TokenStream, vocab: int) -> _Bigrams:
    tokens = train.tokens[:FIT_TOKENS].astype(np.int64)
    keys, occurrences = np.unique(tokens[:-1] * vocab + tokens[1:], return_counts=True)
    firsts = np.bincount(tokens[:-1], minlength=vocab)

    def left_out(alpha: float) -> float:
        """Log-likelihood of the training pairs, each predicted from all the others."""
        return float(
            (occurrences * np.log((occurrences - 1 + alpha) / (firsts[keys // vocab] - 1 + alpha * vocab))).sum()
        )

    return _Bigrams(keys, occurrences, firsts, max(ALPHAS, key=left_out))
