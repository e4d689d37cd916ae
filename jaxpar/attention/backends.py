"""Attention backends in order of preference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax

from jaxpar.attention import blockwise, cudnn
from jaxpar.attention.choosing import choose
from jaxpar.attention.request import AttentionRequest
from jaxpar.config.plan import Choice


@dataclass(frozen=True)
class Backend:
    """An implementation of attention on one device.

    `attend(q, k, v, *, mask, q_slots, kv_slots, q_segments, kv_segments, prefix_lengths, scale, softcap, query_block,
    kv_block)` takes what `pallas_kernels.attention.attention` takes and returns the output
    [batch, queries, heads, width]. Every backend keeps query, key, value, output and log-sum-exp for the backward, the
    last two under the checkpoint names `attention_output` and `attention_lse`.
    """

    name: str
    supports: Callable[[AttentionRequest], str | None]
    attend: Callable[..., jax.Array]


BACKENDS = (
    Backend("cudnn", cudnn.supports, cudnn.attend),
    Backend("blockwise", blockwise.supports, blockwise.attend),
)


def choose_backend(name: str, request: AttentionRequest) -> Choice:
    """The backend for `attention.backend: name`. Raises `UserError` where `choose` does."""
    return choose("attention.backend", name, BACKENDS, request)
