"""Cross-entropy of masked tokens (BERT, arXiv:1810.04805), whose rows are of `jaxpar.data.masked`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.config.schema import Config
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.objectives.contrastive import row_terms
from jaxpar.objectives.tokens import CrossEntropy
from jaxpar.runtime.batch import Field
from jaxpar.runtime.objective import Head


class MaskedTokens(CrossEntropy):
    """The negative log-likelihood of each token that is drawn, at its position, and the term of `loss.contrastive`."""

    def __init__(self, config: Config):
        super().__init__(config)
        loss, settings = config.loss, config.loss.contrastive
        self.settings = settings
        self.description = f"{loss.rate:.0%} of the tokens, of which four fifths are token {loss.mask_token}"
        if settings.weight:
            triples = Field("triples", per="row", dims=(settings.most, 4))
            weights = Field("triple_weights", "float32", per="row", dims=(settings.most,))
            self.fields, self.reports = (*CrossEntropy.fields, triples, weights), ("contrastive",)
            self.description += f", and {settings.weight:g} times a contrastive term over relations"

    def loss(self, head: Head, batch: dict[str, jax.Array]) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The sums over tokens, with those of `row_terms` times the drawn tokens of a row on the first context rank.

        The term sends over context and tensor, for each triple, two vectors of the width of the model.
        """
        total, reports = super().loss(head, batch)
        if not self.settings.weight:
            return total, reports
        triples = batch["triples"]
        first, stop = (jnp.concatenate([triples[..., at], triples[..., at + 2]], axis=1)[..., None] for at in (0, 1))
        indices = batch["indices"][:, None]
        spans = head.pooled(((indices >= first) & (indices < stop)).astype(jnp.float32))
        terms = row_terms(spans, triples, batch["triple_weights"], self.settings.temperature)
        drawn = reduce_sum(batch["mask"].sum(1), ("context",))
        once = jnp.where(lax.axis_index("context") == 0, (drawn * terms).sum(), 0.0)
        value = self.settings.weight * once
        return total + value, {
            "loss": reports["loss"] + lax.stop_gradient(value),
            "contrastive": lax.stop_gradient(once),
        }
