"""Simple preference optimization: a loss of pairs without a reference (Meng et al. 2024, arXiv:2405.14734, equation 6):

    h = beta (mean log p(chosen) - mean log p(rejected)) - gamma
    loss = -(1 - label_smoothing) log sigmoid(h) - label_smoothing log sigmoid(-h)

Means are over a document's tokens in the loss mask. A document's reward is beta (mean log p). TRL's `CPOTrainer` with
`loss_type="simpo"` and `cpo_alpha=0` has this loss; its default of `cpo_alpha` adds a negative log-likelihood.
"""

from __future__ import annotations

from jaxtyping import Array, Bool

from jaxpar.config.schema import Config
from jaxpar.objectives.pairs import ByDocument, ByPair, PairObjective, compared, sigmoid_loss, smoothed, token_means


class SimplePreference(PairObjective):
    """The mean loss of pairs."""

    def __init__(self, config: Config):
        super().__init__(config)
        loss = config.loss
        self.description = f"beta {loss.beta:g}, gamma {loss.gamma:g}{smoothed(loss)}; no reference"

    def pair_losses(
        self, likely: ByDocument, sums: dict[str, ByDocument], valid: Bool[Array, "row pair"]
    ) -> tuple[ByPair, tuple[ByPair, ...]]:
        """See `PairObjective.pair_losses`."""
        del valid
        rewards, settings = self.settings.beta * token_means(likely, sums), self.settings
        margin = rewards[..., 0] - rewards[..., 1] - settings.gamma
        return sigmoid_loss(margin, settings.label_smoothing), compared(rewards)
