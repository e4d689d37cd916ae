"""The attention of a plan as one function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
from jax import lax

from jaxpar.attention.backends import attend_alone
from jaxpar.attention.context import CONTEXT_STRATEGIES, ContextStrategy
from jaxpar.attention.row import ContextLayout, RowTokens
from pallas_kernels.attention import Settings
from pallas_kernels.attention.registry import REGISTRY, Implementation


def attend(backend: str, context_strategy: str, layout: ContextLayout) -> Callable[..., jax.Array]:
    """Attention by names that were chosen (`Plan.attention.name`, `Plan.context_strategy.name`).

    The function is called inside the step as `f(settings, q, k, v, row, sinks)` with this rank's heads and its context
    part of the sequence, all [batch, part, heads, width], and returns the output like q; `sinks` [heads] may be left
    out. See `jaxpar.attention.allgather.allgather`.
    """
    (strategy,) = (entry for entry in CONTEXT_STRATEGIES if entry.name == context_strategy)
    return partial(_attend, REGISTRY[backend], strategy, layout)


def _attend(
    backend: Implementation,
    strategy: ContextStrategy,
    layout: ContextLayout,
    settings: Settings,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    row: RowTokens,
    sinks: jax.Array | None = None,
) -> jax.Array:
    if lax.axis_size("context") == 1:
        return attend_alone(backend, settings, q, k, v, row.seen(settings.mask, None, None), sinks)
    return strategy.attend(backend, settings, layout, q, k, v, row, sinks)
