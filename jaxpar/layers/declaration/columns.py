"""Columns beside the residual stream, which the input or a layer writes and later layers read: inputs of each layer,
and the keys and values of layers that others share.

Between layers they are behind the columns of the stream, in one array, so that pipelines send them, layers save them
and their gradients come back with the stream's. Keys and values are split as in attention, over tensor ranks by heads:
a rank's columns are an arbitrary part of what it has, which only the same rank reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.config.counting import head_dim, kv_heads, streams_of
from jaxpar.config.kinds import kind_models
from jaxpar.config.schema import ModelConfig

INPUTS = "per_layer_inputs"
"""The inputs of all layers (`model.per_layer_embeddings`), one layer's behind another's."""

type Columns = dict[str, Float[Array, "batch part width"]]
"""Columns by name."""


@dataclass(frozen=True)
class SharedKeys:
    """The keys and values of the last layer of a kind."""

    kind: str
    heads: int
    width: int

    def columns(self, tensor: int) -> int:
        """Columns on `tensor` ranks, of which each has a head at least."""
        return 2 * self.width * max(self.heads, tensor)


@dataclass(frozen=True)
class Beside:
    """The columns beside the residual stream."""

    embed: int
    """Columns of the residual streams."""
    inputs: int = 0
    """The number of columns of `INPUTS`."""
    shared: tuple[SharedKeys, ...] = ()
    writes: str | None = None
    """The kind whose keys and values the layer that this belongs to writes."""

    def widths(self, tensor: int) -> dict[str, int]:
        """The number of columns by name, in order."""
        return ({INPUTS: self.inputs} if self.inputs else {}) | {one.kind: one.columns(tensor) for one in self.shared}

    def width(self, tensor: int) -> int:
        """All columns beside the stream."""
        return sum(self.widths(tensor).values())

    def split(self, x: Float[Array, "batch part width"]) -> tuple[Float[Array, "batch part embed"], Columns]:
        """The residual stream, and the columns beside it."""
        columns, start = {}, self.embed
        for name, width in self.widths(lax.axis_size("tensor")).items():
            columns[name] = x[..., start : start + width]
            start += width
        return (x[..., : self.embed] if columns else x), columns

    def joined(self, x: Float[Array, "batch part embed"], columns: Columns) -> Float[Array, "batch part width"]:
        """The stream with the columns beside it; zeros for those that nobody wrote."""
        widths = self.widths(lax.axis_size("tensor"))
        if not widths:
            return x
        zeros = lambda width: jnp.zeros((*x.shape[:-1], width), x.dtype)
        behind = [columns[name] if name in columns else zeros(width) for name, width in widths.items()]
        return jnp.concatenate([x, *behind], axis=-1)

    def writing(self, attend: Callable[..., jax.Array], columns: Columns) -> Callable[..., jax.Array]:
        """`attend`, which also writes the layer's keys and values if others share them."""
        if self.writes is None:
            return attend
        kind = self.writes

        def attention(q: jax.Array, k: jax.Array, v: jax.Array, *others: jax.Array) -> jax.Array:
            both = jnp.stack([k, v], axis=-2)
            like = columns[kind]
            columns[kind] = both.reshape(like.shape).astype(like.dtype)
            return attend(q, k, v, *others)

        return attention


def shared_keys(
    columns: Float[Array, "batch part width"], width: int
) -> tuple[Float[Array, "batch seq heads width"], Float[Array, "batch seq heads width"]]:
    """The keys and values that a layer wrote, each head as wide as `width`."""
    batch, part, _ = columns.shape
    both = columns.reshape(batch, part * lax.axis_size("tensor"), -1, 2, width)
    return both[..., 0, :], both[..., 1, :]


def side_columns(model: ModelConfig, kind: str | None = None) -> Beside:
    """The columns of a model, for a layer of a kind."""
    models, per_layer = kind_models(model), model.per_layer_embeddings
    sources = dict.fromkeys(one.keys_of for one in models.values() if one.keys_of in models)
    return Beside(
        streams_of(model) * model.embed,
        0 if per_layer is None else model.layers * per_layer.width,
        tuple(SharedKeys(name, kv_heads(models[name]), head_dim(models[name])) for name in sources),
        kind if kind in sources else None,
    )
