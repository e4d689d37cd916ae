"""The message of outer gradients between islands: one array for all weights that vary over the same mesh axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import xla_metadata_call
from jaxtyping import Array, Float, Shaped

from jaxpar.config.axes import ISLANDS
from jaxpar.mesh.axes import vary, varying_axes
from jaxpar.mesh.collectives import gather_from_islands, reduce_sum, sum_over_islands
from jaxpar.optim.outer import decode_message, encode_message, message_bytes

type Rows = Float[Array, "rows ..."]
type PackedMessage = Shaped[Array, "..."]
"""One message: the outer gradients of several weights, flattened and concatenated."""

SEPARATE_STREAM = {"inlineable": "false", "_xla_stream_annotation": "1", "_xla_gpu_collective_stream": "p2p"}
"""XLA metadata by which XLA:GPU runs a function on a separate stream, as soon as its argument is computed. All other
collectives share one stream, where a message over a slow link would delay those of the step, and start as late as XLA's
estimate of the usual network allows. XLA assumes 30 ms for such a call and no time for loops, so steps of 0.4 s hid
12.7 to 17.8 ms. The result has to be one array: XLA waits for a tuple at once. No GPU has run it."""


def send_gradients(gradient: Sequence[Rows], message_dtype: str | None, *, beside: bool) -> list[PackedMessage]:
    """Send outer gradients to all islands; returns their sum, or the quantized ones of each island.

    Args:
        gradient: outer gradients of this island.
        wire: dtype of the message, as in `encode_message`.
        beside: whether the message runs beside a step.
    """
    exchange = sum_over_islands if message_dtype is None else gather_from_islands

    def send(indices: list[int], axes: frozenset[str]) -> PackedMessage:
        each = [encode_message(_to_rows(gradient[index]), message_dtype).reshape(-1) for index in indices]
        parcel = jnp.concatenate(
            lax.optimization_barrier(vary(each, axes))
        )  # a barrier, or XLA copies weights into the message's layout
        if not beside:
            return exchange(parcel)
        # XLA:CPU does not order the collectives of a call and those outside of it.
        apart: Any = xla_metadata_call(exchange, **SEPARATE_STREAM)
        return lax.platform_dependent(parcel, cpu=exchange, default=apart)

    return [send(*one) for one in _parcels(gradient)]


def zero_parcels(like: Sequence[Rows], message_dtype: str | None) -> list[PackedMessage]:
    """Zeros with the shapes and types of the result of `send_gradients` for gradients `like` these."""

    def zeros(indices: list[int], axes: frozenset[str]) -> PackedMessage:
        length = sum(_length(like[index], message_dtype) for index in indices)
        empty = jnp.zeros(length) if message_dtype is None else jnp.zeros((lax.axis_size(ISLANDS), length), jnp.uint8)
        return lax.pcast(empty, tuple(axes), to="varying")

    return [zeros(*one) for one in _parcels(like)]


def mean_gradients(parcels: Sequence[PackedMessage], like: Sequence[Rows], message_dtype: str | None) -> list[Rows]:
    """The mean over islands of the gradients in `parcels`, for gradients `like` these; sums are in float32."""
    islands, by_index = lax.axis_size(ISLANDS), dict[int, Rows]()
    for parcel, (indices, axes) in zip(parcels, _parcels(like), strict=True):
        start = 0
        for index in indices:
            stop = start + _length(like[index], message_dtype)
            mean = _sum(parcel[..., start:stop], like[index], message_dtype) / islands
            by_index[index] = reduce_sum(mean, sorted(axes - varying_axes(like[index])))  # over axes of size 1
            start = stop
    return [by_index[index] for index in range(len(like))]


def _sum(part: PackedMessage, like: Rows, message_dtype: str | None) -> Rows:
    if message_dtype is None:
        return part.reshape(like.shape)
    islands, (rows, elements) = len(part), _to_rows(like).shape
    each = decode_message(part.reshape(islands * rows, -1), elements, message_dtype)
    return each.reshape(islands, *like.shape).sum(axis=0)


def _length(rows: Rows, message_dtype: str | None) -> int:
    """Elements of the rows in a message."""
    height, elements = _to_rows(rows).shape
    return height * (elements if message_dtype is None else message_bytes(elements, message_dtype))


def _to_rows(rows: Rows) -> Float[Array, "rows elements"]:
    return rows.reshape(1 if rows.ndim == 1 else len(rows), -1)


def _parcels(arrays: Sequence[Rows]) -> list[tuple[list[int], frozenset[str]]]:
    """Indices of the arrays of each message, and the axes other than islands over which any of them varies.

    Arrays of one message vary over the same axes of more than one rank. The largest message is last: XLA has four under
    way at a time, and prefers the last ones.
    """
    groups: dict[frozenset[str], list[int]] = {}
    for index, array in enumerate(arrays):
        differs = frozenset(axis for axis in varying_axes(array) if lax.axis_size(axis) > 1)
        groups.setdefault(differs, []).append(index)
    largest_last = sorted(groups.values(), key=lambda indices: sum(arrays[index].size for index in indices))
    varying = lambda indices: frozenset().union(*(varying_axes(arrays[index]) for index in indices))
    return [(indices, varying(indices)) for indices in largest_last]
