"""The attention of a plan as one function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax

from jaxpar.attention.backends import BACKENDS
from jaxpar.attention.context import CONTEXT_STRATEGIES


def attend(backend: str, context_strategy: str) -> Callable[..., jax.Array]:
    """Attention by names that were chosen (`Plan.attention.name`, `Plan.context_strategy.name`).

    The function is called inside the step as `f(q, k, v, *, mask, slots, segments, prefix_lengths=None, scale=None,
    softcap=None, query_block=512, kv_block=512)` with this rank's heads and its context part of the sequence:
    q, k and v are [batch, part, heads, width], slots and segments [batch, part]. It returns the output like q.
    See `jaxpar.attention.context.allgather`.
    """
    (implementation,) = (entry for entry in BACKENDS if entry.name == backend)
    (strategy,) = (entry for entry in CONTEXT_STRATEGIES if entry.name == context_strategy)
    return partial(strategy.attend, implementation.attend)
