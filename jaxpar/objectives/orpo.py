"""Odds ratio preference optimization: the likelihood of chosen documents and a loss of pairs, without a reference.

Hong et al. 2024 (arXiv:2403.07691), equations 4 to 7, with m a document's mean log-probability of the tokens in the
loss mask, and odds = exp(m) / (1 - exp(m)):

    loss = -m(chosen) - beta log sigmoid(log odds(chosen) - log odds(rejected))

A document's reward is beta m. TRL's `ORPOTrainer` differs: its likelihood is a mean over all tokens of the batch's
chosen documents, those of their prompts included.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxpar.config.schema import Config
from jaxpar.objectives.pairs import ByDocument, ByPair, PairObjective, compared, token_means

CERTAIN = -1e-6
"""Greatest mean log-probability in the odds, which are infinite at 0."""


class OddsRatioPreference(PairObjective):
    """The mean loss of pairs."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.description = f"beta {config.loss.beta:g}; no reference"

    def pair_losses(
        self, likely: ByDocument, sums: dict[str, ByDocument], valid: Bool[Array, "row pair"]
    ) -> tuple[ByPair, tuple[ByPair, ...]]:
        """See `PairObjective.pair_losses`."""
        del valid
        means = token_means(likely, sums)
        bounded = jnp.minimum(means, CERTAIN)
        odds = bounded - jnp.log(-jnp.expm1(bounded))
        loss = -means[..., 0] - self.settings.beta * jax.nn.log_sigmoid(odds[..., 0] - odds[..., 1])
        return loss, compared(self.settings.beta * means)
