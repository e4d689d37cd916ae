"""Kahneman-Tversky optimization: a loss of single answers, each marked as desirable or not.

Ethayarajh et al. 2024 (arXiv:2402.01306), section 4.1, with reward = log p - log r of an answer, p the model and r the
reference:

    z = max(0, mean reward of unrelated answers)                       without a derivative
    loss = desirable_weight (1 - sigmoid(beta (reward - z)))           of a desirable answer
    loss = undesirable_weight (1 - sigmoid(beta (z - reward)))         of another

The second document of a pair is the prompt of the first one with the answer to another prompt. The mean of z is over
the pairs of a row, so that a loss is the same on every layout and in any microbatches. TRL's `KTOTrainer` differs: its
mean is over what all processes have in a microbatch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from jaxpar.config.schema import Config
from jaxpar.objectives.pairs import REFERENCE, ByDocument, ByPair, PairObjective
from jaxpar.runtime.batch import Field

MARKED_REWARDS = ("reward_margin", "reward_accuracy", "kl")
"""Metrics beside the loss: the mean of beta (reward - z), negative for undesirable answers; the share of answers on the
right side of z; z."""


class MarkedPreference(PairObjective):
    """The mean loss of answers. The field `label` is 1 at the first token of a desirable answer's document, -1 of
    another's, and 0 at other tokens."""

    fields = (*PairObjective.fields, REFERENCE, Field("label", "float32"))
    reports = MARKED_REWARDS

    def __init__(self, config: Config):
        super().__init__(config)
        loss = config.loss
        self.description = (
            f"beta {loss.beta:g}, weights {loss.desirable_weight:g} and {loss.undesirable_weight:g}; the reference is "
            f"{loss.reference or config.run.init_from}"
        )

    def pair_losses(
        self, likely: ByDocument, sums: dict[str, ByDocument], valid: Bool[Array, "row pair"]
    ) -> tuple[ByPair, tuple[ByPair, ...]]:
        """See `PairObjective.pair_losses`."""
        settings, rewards, label = self.settings, likely - sums["reference"], sums["label"][..., 0]
        unrelated = jnp.where(valid, rewards[..., 1], 0.0).sum(1) / jnp.maximum(valid.sum(1), 1)
        z = lax.stop_gradient(jnp.maximum(unrelated, 0.0))[:, None]
        margin = settings.beta * label * (rewards[..., 0] - z)
        weight = jnp.where(label > 0, settings.desirable_weight, settings.undesirable_weight)
        return weight * jax.nn.sigmoid(-margin), (margin, margin > 0, z + jnp.zeros_like(margin))
