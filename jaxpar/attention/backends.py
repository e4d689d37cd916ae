"""Attention backends in order of preference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import jax

from jaxpar.attention import blockwise, cudnn
from jaxpar.attention.choosing import choose
from jaxpar.attention.request import AttentionRequest
from jaxpar.config.plan import Choice
from pallas_kernels.attention import Settings, Tokens, attention_backward, attention_forward


@dataclass(frozen=True)
class Merged:
    """Attention over some of a row's keys, so that a context strategy can merge it by log-sum-exp.

    `forward(settings, q, k, v, tokens)` and `backward(settings, q, k, v, tokens, lse, inner, d_out)` are called like
    `attention_forward` and `attention_backward` of `pallas_kernels.attention`, and return float32.
    """

    forward: Callable[..., tuple[jax.Array, jax.Array]]
    backward: Callable[..., tuple[jax.Array, jax.Array, jax.Array]]


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
    merged: Merged | None = None
    """None where the backend attends over whole rows alone."""

    def whole(self, settings: Settings, q: jax.Array, k: jax.Array, v: jax.Array, tokens: Tokens) -> jax.Array:
        """`attend` over whole rows, differentiable."""
        options = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name != "run"}
        return self.attend(q, k, v, **options, **tokens._asdict())


BACKENDS = (
    Backend("cudnn", cudnn.supports, cudnn.attend),
    Backend("blockwise", blockwise.supports, blockwise.attend, Merged(attention_forward, attention_backward)),
)


def merged(backend: Backend) -> Merged:
    """`backend.merged` of a backend that a plan chose for a strategy that merges."""
    assert backend.merged is not None, f"{backend.name} attends over whole rows alone"
    return backend.merged


def choose_backend(name: str, request: AttentionRequest) -> Choice:
    """The backend for `attention.backend: name`. Raises `UserError` where `choose` does."""
    return choose("attention.backend", name, BACKENDS, request)
