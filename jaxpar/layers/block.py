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
"""Attention of this rank's queries over the full sequence: (query, key, value, tokens) -> output of the query's shape.
A fifth argument is the attention sinks of heads that have them."""


CACHED_ROWS = ("pipe", *DATA_AXES)
"""Mesh axes of the rows of a cache. Generation has one pipeline stage: the pipe axis has size 1."""


class DecodedRows(NamedTuple):
    """The rows that generation continues with further tokens."""

    lengths: Int[Array, " batch"]
    """Tokens of each row, the last one included."""
    capacity: int
    """Largest number of tokens of a row."""
    page: int
    """Tokens of a page, a multiple of the context ranks."""
    pages: Int[Array, "batch pages"] | None = None
    """The pages of each row in its data rank's pool, in order; None for prompts."""


class Context(NamedTuple):
    """Facts about a layer that its blocks read."""

    index: Int[Array, ""]
    """The layer's index in the full model."""
    tokens: TokenContext
    attend: Attend
    train: bool
    """Whether this is training, with dropout and other random draws."""
    rows: DecodedRows | None = None
    """Rows that generation continues; None in training."""
    recorded: dict[str, jax.Array] | None = None
    """Blocks write their `Block.records` here, [batch, part, ...]; None if none are wanted."""
    layout: LayerLayout = UNTILED
    """The layer's part of the plan: tiles, exchange of experts, linear attention."""
    stream: Float[Array, "batch part embed"] | None = None
    """The residual stream before the block; the block's input is this or its norm."""
    beside: Columns | None = None
    """Values that layers pass on beside the residual stream, for each token."""
    source: PyTree = None
    """Cache of the keys and values that the layer shares with an earlier one, in generation."""


class Block(nnx.Module, ABC):
    """Weights, and a function of the residual stream; `part` declares both."""

    reports: tuple[str, ...] = ()
    """Names of the values that it reports."""
    fields: tuple[Field, ...] = ()
    """The fields of a batch that it reads, as `TokenContext.fields`."""
    records: tuple[Field, ...] = ()
    """The optional ones of `fields` that replay what another forward wrote to `Context.recorded`: [layer, ...] for each
    token; the lower one of the field's `limits` means that nothing was recorded."""
    reads: ClassVar[tuple[str, ...]] = ()
    """The keys of `model` that it reads, of those that only some mixers read
    (`jaxpar.layout.checks.model.OF_SOME_MIXERS`)."""
    order: ClassVar[Literal["any", "contiguous"]] = "any"
    """The order of a row's tokens over context ranks that it requires."""
    wide_gradients: ClassVar[bool] = False
    """Whether matmuls give the gradients of its matrices in the dtype in which gradients accumulate and are reduced.
    False for mixers: XLA would overlap too little with the gathers beside them (docs/decisions.md)."""
    cache: ClassVar[PyTree] = ()
    """The partition of each array of its cache in generation; empty if it needs no earlier tokens."""

    def __init__(self, part: Part):
        self.part = part
        declare_weights(self, part.weights)

    def paged(self, capacity: int) -> bool:
        """Whether the cache of rows of up to `capacity` tokens is in pages, [page, ..., token, width]; else each row
        has a part of an array."""
        return False

    @abstractmethod
    def __call__(self, x: Float[Array, "batch part embed"], context: Context, ops: Ops) -> Output:
        """The summand of the residual stream, computed from the stream or its norm, and the report."""

    @classmethod
    def check(cls, model: ModelConfig, kind: str) -> None:
        """Raise `UserError` if the block does not support `model`, whose layers are all alike; `key_of(kind, ...)`
        (`jaxpar.config.kinds`) names its keys for the user."""

    def decode(
        self, x: Float[Array, "batch part embed"], cache: PyTree, context: Context, ops: Ops
    ) -> tuple[jax.Array, PyTree]:
        """The summand of the residual stream in generation, and the cache after these tokens.

        If `cache` is None, the tokens of `x` are the prompts of `context.rows` in contiguous order, each padded at its
        end. Else they are the last token of each row, side by side in one row.
        """
        assert not self.cache, "a block with a cache decodes"
        return self(x, context, ops)[0], ()

    def project(self, group: str, x: jax.Array, matmul: Matmul) -> Any:
        """`x` times each matrix of a group, with the collectives that the group needs."""
        (declared,) = (one for one in self.part.groups if one.name == group)
        matrices = [self.matrix(name) for name in declared.weights]
        if not declared.inward:
            return matmul.scatter(x, *matrices)
        return matmul.local(x, matrices) if declared.between else matmul.gather(x, matrices)

    def matrix(self, name: str) -> Matrix:
        """A matrix, or its factors if it has low-rank ones."""
        return matrix_of(self.part, name, self.weight)

    def weight(self, name: str) -> jax.Array:
        """A weight, also one that only some models have."""
        return getattr(self, name)[...]

    def biased(self, x: Float[Array, "*batch width"], weight: str) -> Float[Array, "*batch width"]:
        """The output of the matrix `weight`, with its bias if it has one."""
        return x + self.weight(f"{weight}_bias") if f"{weight}_bias" in self.part.weights else x

    def named(self, x: jax.Array, name: str) -> jax.Array:
        """`x` as an activation of the part."""
        return name_activation(x, name, self.part.activations)
