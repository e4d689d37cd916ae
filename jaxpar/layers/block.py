"""A block of a layer: attention, a feed-forward, or another mixer, between norms of the residual stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxpar.layers.context import TokenContext
from jaxpar.layers.declaration.activations import name_activation
from jaxpar.layers.declaration.part import Part
from jaxpar.layers.declaration.weights import declare_weights
from jaxpar.layers.ops.plain import Matmul, Matrix, Ops, matrix_of
from jaxpar.layers.report import Output
from jaxpar.runtime.batch import Field

type Attend = Callable[..., jax.Array]
"""Attention of this rank's queries over the whole sequence: (query, key, value, tokens) -> output like query. A fifth
argument, if heads have them, is their sinks."""


class Context(NamedTuple):
    """The layer that a block is in, as far as the block needs to know it."""

    index: Int[Array, ""]
    """The layer's number in the whole model."""
    tokens: TokenContext
    attend: Attend
    train: bool
    """Whether what is drawn in training is drawn."""


class Block(nnx.Module, ABC):
    """Weights, and what they make of the residual stream; `part` declares both."""

    reports: tuple[str, ...] = ()
    """Names of what it reports."""
    fields: tuple[Field, ...] = ()
    """What it reads of a batch, as `TokenContext.fields`."""
    elementwise: ClassVar[Mapping[str, Literal["input", "gradients"]]] = {}
    """The groups of matmuls around its elementwise work, with the operand that this work or its derivative makes."""

    def __init__(self, part: Part):
        self.part = part
        declare_weights(self, part.weights)

    @abstractmethod
    def __call__(self, x: Float[Array, "batch part embed"], context: Context, ops: Ops) -> Output:
        """The summand of the residual stream, computed from the stream or its norm, and the report."""

    def project(self, group: str, x: jax.Array, matmul: Matmul) -> Any:
        """A group of matmuls with the collectives around it: linear in the block's matrices, and in `x`."""
        (declared,) = (one for one in self.part.groups if one.name == group)
        matrices = [self.matrix(name) for name in declared.weights]
        if not declared.inward:
            return matmul.scatter(x, *matrices)
        return matmul.local(x, matrices) if declared.between else matmul.gather(x, matrices)

    def matrix(self, name: str) -> Matrix:
        """A matrix or its factors."""
        return matrix_of(self.part, name, self.weight)

    def weight(self, name: str) -> jax.Array:
        """A weight, which perhaps only some models have."""
        return getattr(self, name)[...]

    def biased(self, x: Float[Array, "*batch width"], weight: str) -> Float[Array, "*batch width"]:
        """The output of the matrix `weight`, with its bias if it has one."""
        return x + self.weight(f"{weight}_bias") if f"{weight}_bias" in self.part.weights else x

    def named(self, x: jax.Array, name: str) -> jax.Array:
        """`x` as an activation of the part."""
        return name_activation(x, name, self.part.activations)
