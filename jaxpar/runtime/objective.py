"""The loss that a step minimizes: the fields of a batch that the loss reads, what it is divided by, and its sum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

import jax
from jaxtyping import Array, Float, Int

from jaxpar.config.schema import Config
from jaxpar.runtime.batch import LABELS, MASK, Field


class Head(Protocol):
    """The output head over the residual stream of a microbatch. Logits exist for a tile of tokens at a time.

    Arrays are of this context rank's tokens. A token has one label, or several where `LossEntry.teacher` says so.
    Results are the same on all ranks that split the vocabulary.
    """

    def cross_entropy(
        self, labels: Int[Array, "row token *label"], weights: Float[Array, "row token *label"]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Sums over tokens and their labels, each times its weight: of the negative log-likelihood in nats with z-loss,
        which has a derivative, and without, which has none. Weights have no derivative; any sign will do."""
        ...

    def with_temperature(self, temperature: float) -> Head:
        """The head whose logits are divided by a temperature."""
        ...

    def log_probabilities(self, labels: Int[Array, "row token *label"]) -> Float[Array, "row token *label"]:
        """The log-probability of each label in nats, without a derivative. Computes the logits once more."""
        ...

    def pooled(self, tokens: Float[Array, "row span token"]) -> Float[Array, "row span embed"]:
        """Weighted sums over all tokens of a row of the residual stream after the last layer, in float32, with a
        derivative; the same on all ranks that have tokens of the row. Weights have none."""
        ...


class Objective(ABC):
    """A loss, made from the configuration of a run; listed in `jaxpar.config.parts.OBJECTIVES`.

    All functions are traced inside the step's map, on the arrays of one device.
    """

    fields: tuple[Field, ...] = (LABELS, MASK)
    """Fields of a batch that the loss reads, beside those of the forward."""
    reports: tuple[str, ...] = ()
    """Names of the metrics beside the loss."""
    description: str = ""
    """Its settings in words, for the table of the plan."""

    def __init__(self, config: Config):
        del config

    def count(self, batch: dict[str, jax.Array]) -> Float[Array, ""]:
        """This rank's share of the number by which the sums of the batch are divided: its tokens that the mask counts.

        The step adds up the shares of all ranks with other rows or tokens.
        """
        return batch["mask"].sum()

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        """Metrics that follow from the `reports` of a step."""
        del means
        return {}

    @abstractmethod
    def loss(self, head: Head, batch: dict[str, jax.Array]) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """This rank's sums over a microbatch: one with the loss's gradient, and `loss` and the `reports` by name.

        A loss that is not a sum over tokens with fixed weights takes `head.log_probabilities`, and weights the
        cross-entropy of each token by the derivative of the loss with respect to its negative log-likelihood. The value
        of that sum means nothing, and its gradient is the loss's.
        """
