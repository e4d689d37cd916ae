"""Ring attention: keys and values travel from rank to rank while each attends over what it has.

Source: Ring Attention (arXiv:2310.01889). Blocks are merged in float32 by their log-sum-exp, and the transfer of the
next block is issued before the current one is computed. In the backward the gradients of a block's keys and values
travel with it, and come home to its rank at the end, while that rank computes its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.attention.backends import Backend, merged
from jaxpar.attention.row import ContextLayout, RowTokens
from jaxpar.mesh.collectives import shift_context
from pallas_kernels.attention import Settings, Tokens, name_results, output_products
from pallas_kernels.masks import Mask
from pallas_kernels.varying import vary_alike

type Partial = tuple[jax.Array, jax.Array]
"""Float32 output [batch, queries, heads, width] over some keys, and its log-sum-exp [batch, queries, heads]."""


def ring(
    backend: Backend,
    settings: Settings,
    layout: ContextLayout,
    q: Float[Array, "batch queries heads width"],
    k: Float[Array, "batch queries kv_heads width"],
    v: Float[Array, "batch queries kv_heads width"],
    row: RowTokens,
) -> Float[Array, "batch queries heads width"]:
    """Attend over the keys of this rank and of those before it in the ring, as many as the mask can reach.

    With K of `ring_steps` a device sends `(k + v) * (K - 1)` bytes of its k and v in the forward, and in the backward
    the same again and the gradients of both in float32, `K - 1` times. Holds two blocks of keys and values.
    """
    size, part = lax.axis_size("context") // layout.ulysses, q.shape[1]
    steps = ring_steps(settings.mask, layout.order, part, size)
    static = _Ring(backend, settings, layout.ulysses, size, steps, wraps=layout.order != "contiguous")
    return _attend(static, *vary_alike((q, k, v, row)))


def ring_steps(mask: Mask, order: str, part: int, ranks: int) -> int:
    """Blocks, its own included, that a rank of a ring sees: all of them, or in their natural order as far back as a
    window of the mask reaches from a part of `part` tokens."""
    if mask.window is None or not mask.causal or mask.prefix or order != "contiguous":
        return ranks
    return min(ranks, 1 + ceil((mask.window - 1) / part))


def merge(a: Partial, b: Partial) -> Partial:
    """Attention over the keys of both; a query that sees none of them has output 0 and log-sum-exp -inf."""
    (out_a, lse_a), (out_b, lse_b) = a, b
    peak = jnp.maximum(lse_a, lse_b)
    base = jnp.where(peak == -jnp.inf, 0.0, peak)  # -inf - -inf would be NaN
    weight_a, weight_b = jnp.exp(lse_a - base), jnp.exp(lse_b - base)
    total = weight_a + weight_b
    out = out_a * weight_a[..., None] + out_b * weight_b[..., None]
    return out / jnp.where(total == 0.0, 1.0, total)[..., None], base + jnp.log(total)


@dataclass(frozen=True)
class _Ring:
    backend: Backend
    settings: Settings
    stride: int
    """Context ranks from one rank of the ring to the next."""
    size: int
    steps: int
    wraps: bool
    """Whether the last rank's keys go on to the first: not where nothing later is seen."""

    @property
    def rank(self) -> jax.Array:
        return lax.axis_index("context") // self.stride

    def tokens(self, row: RowTokens, step: jax.Array | int) -> Tokens:
        """Of this rank's queries, and of the keys that have come `step` ranks far."""
        source = (self.rank - step) % self.size
        return row.seen(self.settings.mask, (self.rank, self.stride), (source, self.stride))

    def shift[Tree](self, tree: Tree, by: int = 1, *, wrap: bool | None = None) -> Tree:
        """Hand every array of `tree` to the rank of the ring `by` further on."""
        wrap = self.wraps if wrap is None else wrap
        return jax.tree.map(lambda x: shift_context(x, by * self.stride, wrap=wrap), tree)

    def around[State](
        self, kv: tuple, state: State, visit: Callable[[State, tuple, jax.Array | int], State], first: int = 1
    ) -> State:
        """`visit(state, (k, v), step)` for the steps from `first` on, from the block `kv` of the first of them."""
        if self.steps > first + 1:

            def step(carry: tuple[tuple, State], step: jax.Array) -> tuple[tuple[tuple, State], None]:
                kv, state = carry
                following = self.shift(kv)
                return (following, visit(state, kv, step)), None

            (kv, state), _ = lax.scan(step, (kv, state), jnp.arange(first, self.steps - 1))
        return visit(state, kv, self.steps - 1)


def _forward(ring: _Ring, q: jax.Array, k: jax.Array, v: jax.Array, row: RowTokens) -> tuple[jax.Array, tuple]:
    attend = partial(merged(ring.backend).forward, ring.settings, q)
    following = ring.shift((k, v)) if ring.steps > 1 else None
    found = attend(k, v, ring.tokens(row, 0))
    if following is not None:
        found = ring.around(following, found, lambda found, kv, step: merge(found, attend(*kv, ring.tokens(row, step))))
    out, lse = name_results(found[0].astype(q.dtype), found[1])
    return out, (q, k, v, row, out, lse)


def _backward(ring: _Ring, kept: tuple, d_out: jax.Array) -> tuple:
    q, k, v, row, out, lse = kept
    inner = output_products(out, d_out, lse)

    def differentiate(kv: tuple, step: jax.Array | int) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        tokens = ring.tokens(row, step)
        dq, dk, dv = merged(ring.backend).backward(ring.settings, q, *kv, tokens, lse, inner, d_out)
        return dq, (dk, dv)

    def visit(state: tuple, kv: tuple, step: jax.Array | int) -> tuple:
        dq, travelling = state
        arriving = ring.shift(travelling, wrap=True)
        return _add((dq, arriving), differentiate(kv, step))

    if ring.steps == 1:
        dq, (dk, dv) = differentiate((k, v), 0)
    else:
        following = ring.shift((k, v))
        second = ring.shift(following) if ring.steps > 2 else None
        state = differentiate(following, 1)
        if second is not None:
            state = ring.around(second, state, visit, first=2)
        dq, travelled = state
        home = ring.shift(travelled, 1 - ring.steps, wrap=True)
        dq, (dk, dv) = _add((dq, home), differentiate((k, v), 0))
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None


def _add[Tree](a: Tree, b: Tree) -> Tree:
    return jax.tree.map(jnp.add, a, b)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(ring: _Ring, q: jax.Array, k: jax.Array, v: jax.Array, row: RowTokens) -> jax.Array:
    return _forward(ring, q, k, v, row)[0]


_attend.defvjp(_forward, _backward)
