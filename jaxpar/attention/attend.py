"""The attention of a plan as one function."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax

from jaxpar.attention.backends import attend_alone
from jaxpar.attention.context import CONTEXT_STRATEGIES
from jaxpar.attention.row import ContextAttention, ContextLayout, RowTokens
from pallas_kernels.attention import Settings
from pallas_kernels.attention.registry import REGISTRY


def attend(backend: str, context_strategy: str, layout: ContextLayout) -> Callable[..., jax.Array]:
    """Attention by names that were chosen (`Plan.attention.name`, `Plan.context_strategy.name`).

    The function is called inside the step as `f(settings, q, k, v, row, sinks)` with this rank's heads and its context
    part of the sequence, all [batch, part, heads, width], and returns the output like q; `sinks` [heads] may be left
    out. See `jaxpar.attention.allgather.allgather`.
    """
    (strategy,) = (entry for entry in CONTEXT_STRATEGIES if entry.name == context_strategy)
    implementation = REGISTRY[backend]

    def function(
        settings: Settings, q: jax.Array, k: jax.Array, v: jax.Array, row: RowTokens, sinks: jax.Array | None = None
    ) -> jax.Array:
        if lax.axis_size("context") == 1:
            return attend_alone(implementation, settings, q, k, v, row.seen(settings.mask, None, None), sinks)
        return strategy.attend(ContextAttention(implementation, settings, layout), q, k, v, row, sinks)

    return function
