"""A block of a layer: attention, a feed-forward, or another mixer, between norms of the residual stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, Float, Int, PyTree

from jaxpar.config.plan import UNTILED, LayerLayout
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.context import TokenContext
from jaxpar.layers.declaration.activations import name_activation
from jaxpar.layers.declaration.columns import Columns
from jaxpar.layers.declaration.part import Part
from jaxpar.layers.declaration.weights import declare_weights
from jaxpar.layers.ops.plain import Matmul, Matrix, Ops, matrix_of
from jaxpar.mesh.axes import DATA_AXES
from jaxpar.runtime.batch import Field
from jaxpar.runtime.passes import Output

type Attend = Callable[..., jax.Array]
"""Attention of this rank's queries over the whole sequence: (query, key, value, tokens) -> output like query. A fifth
argument, if heads have them, is their sinks."""


CACHED_ROWS = ("pipe", *DATA_AXES)
"""Mesh axes of the rows of a cache. Generation has one pipeline stage: the pipe axis has size 1."""


class DecodedRows(NamedTuple):
    """The rows that generation continues."""

    lengths: Int[Array, " batch"]
    """Tokens of each row, the last one included."""
    capacity: int
    """Tokens that a row may get to."""
    page: int
    """Tokens of a page, a multiple of the context ranks."""
    pages: Int[Array, "batch pages"] | None = None
    """The pages of each row in its data rank's pool, in order; None for prompts."""


class Context(NamedTuple):
    """The layer that a block is in, as far as the block needs to know it."""

    index: Int[Array, ""]
    """The layer's number in the whole model."""
    tokens: TokenContext
    attend: Attend
    train: bool
    """Whether what is drawn in training is drawn."""
    rows: DecodedRows | None = None
    """In generation, the rows that are continued."""
    recorded: dict[str, jax.Array] | None = None
    """Where blocks write what they record (`Block.records`), [batch, part, ...]; None where nobody asks for it."""
    layout: LayerLayout = UNTILED
    """How the layer is computed."""
    stream: Float[Array, "batch part embed"] | None = None
    """The residual stream at the block, which its input is, or is a norm of."""
    beside: Columns | None = None
    """The columns beside the residual stream."""
    source: PyTree = None
    """In generation, the cache of the keys and values that the layer shares with an earlier one."""


class Block(nnx.Module, ABC):
    """Weights, and what they make of the residual stream; `part` declares both."""

    reports: tuple[str, ...] = ()
    """Names of what it reports."""
    fields: tuple[Field, ...] = ()
    """The fields of a batch that it reads, as `TokenContext.fields`."""
    records: tuple[Field, ...] = ()
    """The optional ones of `fields` that replay what another forward recorded in `Context.recorded`: [layer, ...] for
    each token, with `limits`, whose least number stands for none."""
    reads: ClassVar[tuple[str, ...]] = ()
    """The keys of `model` for some mixers alone (`jaxpar.layout.checks.model.OF_SOME_MIXERS`) that it reads."""
    order: ClassVar[Literal["any", "contiguous"]] = "any"
    """The orders of a row's tokens over context ranks that it can take."""
    wide_gradients: ClassVar[bool] = False
    """Whether the gradients of its matrices leave their products in the dtype in which they accumulate and travel.
    Those of mixers are computed beside gathers, which XLA would hide behind too little (docs/decisions.md)."""
    cache: ClassVar[PyTree] = ()
    """The partition of each array of its cache in generation: it keeps nothing of earlier tokens."""

    def __init__(self, part: Part):
        self.part = part
        declare_weights(self, part.weights)

    def paged(self, capacity: int) -> bool:
        """Whether rows of up to `capacity` tokens have its cache in pages, [page, ..., token, width], and not each a
        part of an array."""
        return False

    @abstractmethod
    def __call__(self, x: Float[Array, "batch part embed"], context: Context, ops: Ops) -> Output:
        """The summand of the residual stream, computed from the stream or its norm, and the report."""

    @classmethod
    def check(cls, model: ModelConfig, kind: str) -> None:
        """Raise `UserError` for a model, whose layers are all alike, that the block cannot be of; `key_of(kind, ...)`
        (`jaxpar.config.kinds`) names its keys for the user."""

    def decode(
        self, x: Float[Array, "batch part embed"], cache: PyTree, context: Context, ops: Ops
    ) -> tuple[jax.Array, PyTree]:
        """The summand of the residual stream in generation, and the cache after these tokens.

        Where `cache` is None, they are the prompts of `context.rows` in contiguous order, padded behind their lengths.
        Else they are the last token of each row, side by side as one row.
        """
        assert not self.cache, "a block with a cache decodes"
        return self(x, context, ops)[0], ()

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
