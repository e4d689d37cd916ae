"""Context parallelism: how a rank's queries see the keys and values of the other ranks of its row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array, Float, Int

from jaxpar.attention.choosing import choose
from jaxpar.attention.request import AttentionRequest
from jaxpar.config.plan import Choice
from jaxpar.mesh.collectives import gather_context
from pallas_kernels.masks import Mask


@dataclass(frozen=True)
class ContextStrategy:
    """A way to attend over a sequence that is split over the context axis; `attend` is called like `allgather`."""

    name: str
    supports: Callable[[AttentionRequest], str | None]
    attend: Callable[..., jax.Array]


def allgather(
    backend: Callable[..., jax.Array],
    q: Float[Array, "batch part heads width"],
    k: Float[Array, "batch part kv_heads width"],
    v: Float[Array, "batch part kv_heads width"],
    *,
    mask: Mask,
    slots: Int[Array, "batch part"],
    segments: Int[Array, "batch part"],
    prefix_lengths: Int[Array, " batch"] | None = None,
    **options: Any,
) -> Float[Array, "batch part heads width"]:
    """Gather keys, values and what masks them over the context axis, then attend with this rank's queries.

    With n = context, a device sends `(k + v + slots + segments) * (n - 1)` bytes in the forward (their local bytes;
    segments only where the mask is segmented) and `(k + v) * (n - 1)` in the backward, whose gradients are summed and
    scattered. A layer that keeps the local k and v between the two gathers them again: the forward's bytes once more.
    Holds the keys and values of whole rows while a layer computes.

    Args:
        backend: `Backend.attend`, called with this rank's queries and all keys of the row.
        q: Queries of this rank's part of the sequence.
        k: Keys of the same part.
        v: Values of the same part.
        mask: What a query may see.
        slots: Index of each token of the part in its row.
        segments: Document of each token of the part.
        prefix_lengths: Slots of the prefix of each row; needed where the mask has a prefix.
        options: Passed on: `scale`, `softcap`, `query_block`, `kv_block`.
    """
    return backend(
        q,
        gather_context(k, 1),
        gather_context(v, 1),
        mask=mask,
        q_slots=slots,
        kv_slots=gather_context(slots, 1),
        q_segments=segments if mask.segmented else None,
        kv_segments=gather_context(segments, 1) if mask.segmented else None,
        prefix_lengths=prefix_lengths,
        **options,
    )


def _supports_everything(request: AttentionRequest) -> None:
    """Gathering is right for every backend and mask, and a no-op where context is 1."""


CONTEXT_STRATEGIES = (ContextStrategy("allgather", _supports_everything, allgather),)
"""In order of preference."""


def choose_context_strategy(name: str, request: AttentionRequest) -> Choice:
    """The strategy for `parallel.context_strategy: name`. Raises `UserError` where `choose` does."""
    return choose("parallel.context_strategy", name, CONTEXT_STRATEGIES, request)
