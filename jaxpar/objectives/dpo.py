"""Direct preference optimization: a loss of pairs of documents, one chosen and the other rejected.

Rafailov et al. 2023 (arXiv:2305.18290), equation 7, with the label smoothing of conservative DPO (Mitchell 2023):

    h = (log p(chosen) - log r(chosen)) - (log p(rejected) - log r(rejected))
    loss = -(1 - label_smoothing) log sigmoid(beta h) - label_smoothing log sigmoid(-beta h)

p is the model and r the reference. A document's reward is beta (log p - log r).
"""

from __future__ import annotations

from jaxtyping import Array, Bool

from jaxpar.config.schema import Config
from jaxpar.objectives.pairs import REFERENCE, ByDocument, ByPair, PairObjective, compared, sigmoid_loss, smoothed


class DirectPreference(PairObjective):
    """The mean loss of pairs."""

    fields = (*PairObjective.fields, REFERENCE)

    def __init__(self, config: Config):
        super().__init__(config)
        loss = config.loss
        reference = loss.reference or config.run.init_from
        self.description = f"beta {loss.beta:g}{smoothed(loss)}; the reference is {reference}"

    def pair_losses(
        self, likely: ByDocument, sums: dict[str, ByDocument], valid: Bool[Array, "row pair"]
    ) -> tuple[ByPair, tuple[ByPair, ...]]:
        """See `PairObjective.pair_losses`."""
        del valid
        rewards = self.settings.beta * (likely - sums["reference"])
        return sigmoid_loss(rewards[..., 0] - rewards[..., 1], self.settings.label_smoothing), compared(rewards)
