"""The input of the decoder: the block before the first layer, which makes the residual stream from a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxpar.config.errors import UserError
from jaxpar.config.parts import INPUTS, implementation
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration.part import Weights
from jaxpar.layers.declaration.weights import declare_weights
from jaxpar.runtime.batch import FORWARD, Field

TIED = "tokens"
"""The weight of an input, [vocab, embed], that a tied head multiplies with."""


class Input(nnx.Module, ABC):
    """Weights, and the residual stream that they make from fields of a batch."""

    fields: ClassVar[tuple[Field, ...]] = ()
    """The fields of a batch that it reads."""

    def __init__(self, model: ModelConfig):
        declare_weights(self, self.declare(model))

    @staticmethod
    @abstractmethod
    def declare(model: ModelConfig) -> Weights:
        """Its weights; `model.vocab` is known."""

    @staticmethod
    def flops(model: ModelConfig) -> int:
        """FLOPs of a token, forward; the backward takes twice as many."""
        del model
        return 0

    @classmethod
    def check(cls, model: ModelConfig) -> None:
        """Raise `UserError` for a model that it cannot be the input of."""

    def lookups(self, batch: Mapping[str, jax.Array]) -> dict[str, Int[Array, "batch seq"]]:
        """The index of each token's row in each of its tables, by the name of the table's weight."""
        del batch
        return {}

    @abstractmethod
    def __call__(self, batch: Mapping[str, jax.Array]) -> Float[Array, "batch part embed"]:
        """The residual stream of this tensor rank's part of the sequence (`sequence_part`), in the weights' dtype.

        Behind its columns are those of `jaxpar.layers.declaration.columns` that the input writes. A weight is full.
        A table of `lookups` is the rows of this part's tokens, [batch, part, width].
        """

    def weight(self, name: str) -> jax.Array:
        """A weight, or the rows of a table."""
        return getattr(self, name)[...]


def input_class(model: ModelConfig) -> type[Input]:
    """The input of a model."""
    return implementation(INPUTS[model.input])


def refuse_without_batches(model: ModelConfig, task: str) -> None:
    """Raise `UserError` for a `task` that has tokens and no other fields of a batch, if the model's input reads any;
    and for a bidirectional model, since rows are padded and continued at their ends."""
    if not model.causal:
        raise UserError(
            f"model.causal: false, and {task} has each token after those before it; expected a causal model"
        )
    known = {field.name for field in FORWARD}
    if others := [field.name for field in input_class(model).fields if field.name not in known]:
        raise UserError(
            f"model.input: {model.input} reads the field {others[0]} of a batch, and {task} has tokens alone; expected "
            "a model whose input is tokens"
        )
