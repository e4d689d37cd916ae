"""Losses of pairs of documents, functions of each document's log-probability: the sum of those of its tokens in the
loss mask.

The documents of a row are its pairs in turn: segment 1 is the first document of the first pair, segment 2 its second
one, segment 3 the first one of the second pair, and so on. The rest of the row is padding, segment 0.
"""

from __future__ import annotations

from abc import abstractmethod

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxpar.config.schema import Config, LossConfig
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.runtime.batch import Field
from jaxpar.runtime.objective import Head, Objective

REWARDS = ("reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy")
"""Metrics beside the loss: the rewards of both documents, their difference, and the share of pairs whose chosen
document has the greater one."""
REFERENCE = Field("reference", "float32")
"""The reference's log-probability of each document at the document's first token, and 0 at others."""

type ByDocument = Float[Array, "row pair 2"]
type ByPair = Float[Array, "row pair"]


class PairObjective(Objective):
    """The mean loss of pairs. Of the fields after the first three, `pair_losses` has the sum over each document."""

    fields = (*Objective.fields, Field("pairs", per="row"))
    reports = REWARDS

    def __init__(self, config: Config):
        self.settings = config.loss

    def count(self, batch: dict[str, jax.Array]) -> Float[Array, ""]:
        """The pairs of this rank's rows; on the first context rank, and 0 on others."""
        return jnp.where(lax.axis_index("context") == 0, batch["pairs"].sum(), 0).astype(jnp.float32)

    @abstractmethod
    def pair_losses(
        self, likely: ByDocument, sums: dict[str, ByDocument], valid: Bool[Array, "row pair"]
    ) -> tuple[ByPair, tuple[ByPair, ...]]:
        """The loss of each pair, and its `reports`.

        Args:
            likely: the log-probability of each document; 0 where a row has fewer pairs.
            sums: the tokens of the loss mask in each document (`targets`), and sums of fields.
            valid: whether a row has the pair.
        """

    def loss(self, head: Head, batch: dict[str, jax.Array]) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The tokens weighted by the derivative of the loss; the sums of the loss and of the reports over pairs, on the
        first context rank, and 0 on others.

        Sends over context, for each pair that a row has room for, two floats of each sum.
        """
        mask, segments = batch["mask"], batch["segments"]
        rows, length = mask.shape
        room = lax.axis_size("context") * length // 4
        more = tuple(field.name for field in self.fields if field not in PairObjective.fields)
        # Padding goes to a document that there is no room for: an index of -1 would be that of the last one.
        row, document = jnp.arange(rows)[:, None], jnp.where(segments > 0, segments - 1, 2 * room)
        tokens = jnp.stack(
            [mask * head.log_probabilities(batch["labels"]), mask, *(batch[name] for name in more)], axis=-1
        )
        sums = jnp.zeros((rows, 2 * room, tokens.shape[-1]), jnp.float32).at[row, document].add(tokens, mode="drop")
        likely, *others = jnp.moveaxis(reduce_sum(sums, ("context",)).reshape(rows, room, 2, -1), -1, 0)
        by_name = dict(zip(("targets", *more), others, strict=True))

        valid = jnp.arange(room) < batch["pairs"][:, None]
        once = valid & (lax.axis_index("context") == 0)

        def total(likely: ByDocument) -> tuple[Float[Array, ""], dict[str, ByPair]]:
            losses, reports = self.pair_losses(likely, by_name, valid)
            by_report = dict(zip(("loss", *self.reports), (losses, *reports), strict=True))
            return jnp.where(valid, losses, 0.0).sum(), lax.stop_gradient(by_report)

        slope, values = jax.grad(total, has_aux=True)(likely)
        of_token = jnp.take_along_axis(slope.reshape(rows, 2 * room), document, axis=1, mode="fill", fill_value=0.0)
        weighted = head.cross_entropy(batch["labels"], -mask * of_token)[0]
        return weighted, {name: jnp.where(once, value, 0.0).sum() for name, value in values.items()}


def compared(rewards: ByDocument) -> tuple[ByPair, ...]:
    """Returns the metrics of `REWARDS` for pairs of a chosen and a rejected answer."""
    chosen, rejected = rewards[..., 0], rewards[..., 1]
    return chosen, rejected, chosen - rejected, chosen > rejected


def sigmoid_loss(margin: ByPair, smoothing: float) -> ByPair:
    """-log of the probability that the chosen document is better, where labels are wrong with this probability."""
    return -(1 - smoothing) * jax.nn.log_sigmoid(margin) - smoothing * jax.nn.log_sigmoid(-margin)


def smoothed(loss: LossConfig) -> str:
    """Words for label smoothing, if there is any."""
    return f", label_smoothing {loss.label_smoothing:g}" if loss.label_smoothing else ""


def token_means(likely: ByDocument, sums: dict[str, ByDocument]) -> ByDocument:
    """The mean log-probability of a document's tokens."""
    return likely / jnp.maximum(sums["targets"], 1)
