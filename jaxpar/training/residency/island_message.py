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
from jaxpar.optim.outer import from_wire, to_wire, wire_bytes

type Rows = Float[Array, "rows ..."]
type Parcel = Shaped[Array, "..."]

APART = {"inlineable": "false", "_xla_stream_annotation": "1", "_xla_gpu_collective_stream": "p2p"}
"""Makes XLA:GPU run a function on a stream of its own, from as soon as its argument is there. XLA has all other
collectives on one stream, where a message over a slow link would hold up those of the step, and starts them as late as
its estimate of the usual network allows; of such a call it assumes 30 ms, and loops count as nothing, so steps of 0.4 s
hid 12.7 to 17.8 ms. The result has to be one array: XLA waits for a tuple at once. No GPU has run it."""


def sent(gradient: Sequence[Rows], wire: str | None, *, beside: bool) -> list[Parcel]:
    """The outer gradients of all islands: their sum, or the codes of each, the same on all islands.

    Args:
        gradient: of this island.
        wire: as in `to_wire`.
        beside: whether the message runs beside a step.
    """
    exchange = sum_over_islands if wire is None else gather_from_islands

    def send(indices: list[int], axes: frozenset[str]) -> Parcel:
        each = [to_wire(_in_rows(gradient[index]), wire).reshape(-1) for index in indices]
        parcel = jnp.concatenate(
            lax.optimization_barrier(vary(each, axes))
        )  # apart, or XLA copies weights to its order
        if not beside:
            return exchange(parcel)
        # XLA:CPU does not order the collectives of a call and those outside of it.
        apart: Any = xla_metadata_call(exchange, **APART)
        return lax.platform_dependent(parcel, cpu=exchange, default=apart)

    return [send(*one) for one in _parcels(gradient)]


def nothing(like: Sequence[Rows], wire: str | None) -> list[Parcel]:
    """Zeros of the shapes and types of `sent`, for rows `like` these."""

    def zeros(indices: list[int], axes: frozenset[str]) -> Parcel:
        length = sum(_length(like[index], wire) for index in indices)
        empty = jnp.zeros(length) if wire is None else jnp.zeros((lax.axis_size(ISLANDS), length), jnp.uint8)
        return lax.pcast(empty, tuple(axes), to="varying")

    return [zeros(*one) for one in _parcels(like)]


def means(parcels: Sequence[Parcel], like: Sequence[Rows], wire: str | None) -> list[Rows]:
    """The mean over islands of outer gradients that were `sent`, for rows `like` these; codes are summed in float32."""
    islands, by_index = lax.axis_size(ISLANDS), dict[int, Rows]()
    for parcel, (indices, axes) in zip(parcels, _parcels(like), strict=True):
        start = 0
        for index in indices:
            stop = start + _length(like[index], wire)
            mean = _sum(parcel[..., start:stop], like[index], wire) / islands
            by_index[index] = reduce_sum(mean, sorted(axes - varying_axes(like[index])))  # over axes of one rank
            start = stop
    return [by_index[index] for index in range(len(like))]


def _sum(part: Parcel, like: Rows, wire: str | None) -> Rows:
    if wire is None:
        return part.reshape(like.shape)
    islands, (rows, elements) = len(part), _in_rows(like).shape
    each = from_wire(part.reshape(islands * rows, -1), elements, wire)
    return each.reshape(islands, *like.shape).sum(axis=0)


def _length(rows: Rows, wire: str | None) -> int:
    """Elements of the rows as they travel."""
    height, elements = _in_rows(rows).shape
    return height * (elements if wire is None else wire_bytes(elements, wire))


def _in_rows(rows: Rows) -> Float[Array, "rows elements"]:
    return rows.reshape(1 if rows.ndim == 1 else len(rows), -1)


def _parcels(arrays: Sequence[Rows]) -> list[tuple[list[int], frozenset[str]]]:
    """Indices of the arrays that travel together, and the axes but islands over which any varies; the largest are last.

    They differ on the same ranks. XLA has four messages under way at a time, and prefers the last ones.
    """
    groups: dict[frozenset[str], list[int]] = {}
    for index, array in enumerate(arrays):
        differs = frozenset(axis for axis in varying_axes(array) if lax.axis_size(axis) > 1)
        groups.setdefault(differs, []).append(index)
    largest_last = sorted(groups.values(), key=lambda indices: sum(arrays[index].size for index in indices))
    varying = lambda indices: frozenset().union(*(varying_axes(arrays[index]) for index in indices))
    return [(indices, varying(indices)) for indices in largest_last]
