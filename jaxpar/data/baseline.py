"""Bigram baseline: fit on the training tokens, evaluated on the tokens of the validation loss."""

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
NO_LOSS_TOKENS = (
    "evaluation.batches: the validation rows have no token in the loss; expected more validation data, a longer "
    "data.sequence_length, or evaluation.batches: 0"
)
"""Raised, for example, where every validation document is one token long."""
FIT_TOKENS = 1 << 25
"""Maximum number of training tokens for the fit, from the start of the stream."""


def bigram_loss(train: TokenStream, batches: Iterable[Batch], vocab: int) -> float:
    """Loss of a bigram model in nats per token over the tokens of `batches` with loss mask 1, in float64.

    The model is `p(b | a) = (count(ab) + alpha) / (count(a) + alpha * vocab)` with counts of the first `FIT_TOKENS`
    training tokens, pairs across documents included, and the `alpha` of `ALPHAS` with the highest leave-one-out
    likelihood of these tokens; validation data does not affect it.

    Args:
        train: the training stream.
        batches: validation batches; a pair (`tokens`, `labels`) is scored where `mask` is set.
        vocab: vocabulary size without padding.

    Raises:
        UserError: the loss mask of all batches is 0.
    """
    model = _fit(train, vocab)
    total, scored = 0.0, 0
    for batch in batches:
        in_loss = batch["mask"] > 0
        total -= model.log_probabilities(batch["tokens"][in_loss], batch["labels"][in_loss]).sum()
        scored += int(in_loss.sum())
    if scored == 0:
        raise UserError(NO_LOSS_TOKENS)
    return float(total / scored)


@dataclass(frozen=True)
class _Bigrams:
    """Counts of pairs and of their first tokens."""

    pair_ids: Int64[np.ndarray, " pairs"]
    """`first * vocab + second` of each pair in the training tokens, sorted."""
    pair_frequencies: Int64[np.ndarray, " pairs"]
    first_token_frequencies: Int64[np.ndarray, " vocab"]
    alpha: float

    def log_probabilities(self, first: np.ndarray, second: np.ndarray) -> Float64[np.ndarray, " n"]:
        """Logarithm of `p(second | first)`."""
        vocab = len(self.first_token_frequencies)
        ids = first.astype(np.int64) * vocab + second
        indices = np.minimum(np.searchsorted(self.pair_ids, ids), len(self.pair_ids) - 1)
        frequencies = np.where(self.pair_ids[indices] == ids, self.pair_frequencies[indices], 0)
        return np.log((frequencies + self.alpha) / (self.first_token_frequencies[first] + self.alpha * vocab))


def _fit(train: TokenStream, vocab: int) -> _Bigrams:
    tokens = train.tokens[:FIT_TOKENS].astype(np.int64)
    ids, frequencies = np.unique(tokens[:-1] * vocab + tokens[1:], return_counts=True)
    first_token_frequencies = np.bincount(tokens[:-1], minlength=vocab)

    def leave_one_out(alpha: float) -> float:
        """Log-likelihood of the training pairs, each predicted from all the others."""
        others = first_token_frequencies[ids // vocab] - 1
        return float((frequencies * np.log((frequencies - 1 + alpha) / (others + alpha * vocab))).sum())

    return _Bigrams(ids, frequencies, first_token_frequencies, max(ALPHAS, key=leave_one_out))
