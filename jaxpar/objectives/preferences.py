"""Direct preference optimization: a loss of pairs of documents, of which one was chosen and the other rejected.

Rafailov et al. 2023 (arXiv:2305.18290), equation 7, with the label smoothing of conservative DPO (Mitchell 2023):

    h = (log p(chosen) - log r(chosen)) - (log p(rejected) - log r(rejected))
    loss = -(1 - label_smoothing) log sigmoid(beta h) - label_smoothing log sigmoid(-beta h)

p is the model and r the reference, and a document's log-probability is the sum of those of its tokens in the loss mask.

The documents of a row are its pairs in turn: segment 1 is the first chosen document, segment 2 the first rejected one,
segment 3 the second chosen one, and so on. The rest of the row is padding, segment 0.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.config.schema import Config
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.runtime.batch import Field
from jaxpar.runtime.objective import Head, Objective

REWARDS = ("reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy")
"""Metrics beside the loss. A document's reward is beta (log p - log r); the accuracy is the share of pairs whose chosen
document has the greater one."""


class DirectPreference(Objective):
    """The mean loss of pairs. Fields: the pairs of each row, and the reference's log-probability of each document, at
    the document's first token, and 0 at others."""

    fields = (*Objective.fields, Field("reference", "float32"), Field("pairs", per="row"))
    reports = REWARDS

    def __init__(self, config: Config):
        loss = self._config = config.loss
        smoothing = f", label_smoothing {loss.label_smoothing:g}" if loss.label_smoothing else ""
        reference = loss.reference or config.run.init_from
        self.description = f"beta {loss.beta:g}{smoothing}; the reference is {reference}"

    def count(self, batch: dict[str, jax.Array]) -> Float[Array, ""]:
        """The pairs of this rank's rows; on the first context rank, and 0 on others."""
        return jnp.where(lax.axis_index("context") == 0, batch["pairs"].sum(), 0).astype(jnp.float32)

    def loss(self, head: Head, batch: dict[str, jax.Array]) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The tokens weighted by the derivative of the loss; the sums of the loss and of `REWARDS` over pairs, on the
        first context rank, and 0 on others.

        Sends over context two floats for each pair that a row has room for.
        """
        mask, segments = batch["mask"], batch["segments"]
        rows, length = mask.shape
        room = lax.axis_size("context") * length // 4
        # Padding goes to a document that there is no room for: an index of -1 would be that of the last one.
        row, document = jnp.arange(rows)[:, None], jnp.where(segments > 0, segments - 1, 2 * room)
        ratios = jnp.zeros((rows, 2 * room), jnp.float32)
        ratio = mask * head.log_probabilities(batch["labels"]) - batch["reference"]
        ratios = ratios.at[row, document].add(ratio, mode="drop")
        ratios = reduce_sum(ratios, ("context",)).reshape(rows, room, 2)

        beta, smoothing = self._config.beta, self._config.label_smoothing
        valid = jnp.arange(room) < batch["pairs"][:, None]
        margin = beta * (ratios[..., 0] - ratios[..., 1])
        loss = -(1 - smoothing) * jax.nn.log_sigmoid(margin) - smoothing * jax.nn.log_sigmoid(-margin)
        slope = beta * ((1 - smoothing) * jax.nn.sigmoid(-margin) - smoothing * jax.nn.sigmoid(margin))

        values = loss, beta * ratios[..., 0], beta * ratios[..., 1], margin, margin > 0
        once = valid & (lax.axis_index("context") == 0)
        sums = {name: jnp.where(once, value, 0.0).sum() for name, value in zip(("loss", *REWARDS), values, strict=True)}

        of_pair = jnp.where(valid, slope, 0.0)
        of_document = jnp.stack([of_pair, -of_pair], axis=-1).reshape(rows, 2 * room)
        of_token = jnp.take_along_axis(of_document, document, axis=1, mode="fill", fill_value=0.0)
        return head.cross_entropy(batch["labels"], mask * of_token)[0], sums
