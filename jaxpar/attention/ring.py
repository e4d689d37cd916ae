"""Ring attention: keys and values are sent from rank to rank while each rank attends to its current block.

Source: Ring Attention (arXiv:2310.01889). Blocks are merged in float32 by their log-sum-exp, and the transfer of the
next block is issued before the current one is computed. In the backward the gradients of a block's keys and values
travel with it, and return to its rank at the end, while that rank computes its own block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.attention.backends import merged
from jaxpar.attention.row import ContextAttention, RowTokens
from jaxpar.attention.sinks import with_sinks
from jaxpar.mesh.collectives import shift_context
from pallas_kernels.attention import MaskInputs, Settings, compute_delta, name_residuals
from pallas_kernels.attention.derivative import OutputAndLse
from pallas_kernels.attention.registry import Implementation
from pallas_kernels.masks import Mask
from pallas_kernels.varying import vary_alike
from pallas_kernels.vjp_parts import custom_vjp

type Pair = tuple[jax.Array, jax.Array]
"""Keys and values, or the gradients of both."""
type Partial = tuple[jax.Array, jax.Array]
"""Float32 output [batch, queries, heads, width] over some keys, and its log-sum-exp [batch, queries, heads]."""


def ring(
    how: ContextAttention,
    q: Float[Array, "batch queries heads width"],
    k: Float[Array, "batch queries kv_heads width"],
    v: Float[Array, "batch queries kv_heads width"],
    row: RowTokens,
    sinks: Float[Array, " heads"] | None = None,
) -> Float[Array, "batch queries heads width"]:
    """Attend over the keys of this rank and of the ranks before it in the ring that the mask can reach; of all ranks
    where it is not causal.

    With K of `ring_steps` a device sends `(k + v) * (K - 1)` bytes of its k and v in the forward, and in the backward
    the same again and the gradients of both in float32, `K - 1` times. Holds two blocks of keys and values.
    """
    backend, settings, layout = how
    size, part = lax.axis_size("context") // layout.ulysses, q.shape[1]
    steps = ring_steps(settings.mask, layout.order, part, size)
    static = _Ring(
        backend, settings, layout.ulysses, size, steps, wraps=layout.order != "contiguous" or not settings.mask.causal
    )
    out, lse = _attend(static, *vary_alike((q, k, v, row)))
    return with_sinks(out, lse, sinks)


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
    backend: Implementation
    settings: Settings
    stride: int
    """Context ranks from one rank of the ring to the next."""
    size: int
    steps: int
    wraps: bool
    """Whether the last rank's keys go on to the first; not where no query sees later keys."""

    @property
    def rank(self) -> jax.Array:
        return lax.axis_index("context") // self.stride

    def tokens(self, row: RowTokens, step: jax.Array | int) -> MaskInputs:
        """The tokens of this rank's queries, and of the keys that have travelled `step` ranks."""
        source = (self.rank - step) % self.size
        return row.seen(self.settings.mask, (self.rank, self.stride), (source, self.stride))

    def shift(self, pair: Pair, by: int = 1, *, wrap: bool | None = None) -> Pair:
        """Send two arrays of one dtype to the rank `by` further along the ring, as one message.

        XLA has one permute in flight at a time, so the second of two could not overlap with the attention.
        """
        wrap = self.wraps if wrap is None else wrap
        return _parted(shift_context(_joined(pair), by * self.stride, wrap=wrap), pair)

    def shift_both[T](self, kv: Pair, travelling: Pair, meanwhile: Callable[[], T]) -> tuple[Pair, Pair, T]:
        """`shift` of keys and values, and of their float32 gradients, while something is computed.

        They are one message where both go all the way round; it is unpacked only when the computation is done.
        """
        if not self.wraps:
            return self.shift(kv), self.shift(travelling, wrap=True), meanwhile()
        message = shift_context(_packed(kv, travelling), self.stride, wrap=True)
        message, result = lax.optimization_barrier((message, meanwhile()))
        return *_unpacked(message, kv), result


def _joined(pair: Pair) -> jax.Array:
    """Two arrays as one: stacked, or flat where values have another width than keys."""
    first, second = pair
    return jnp.stack(pair) if first.shape == second.shape else jnp.concatenate([first.ravel(), second.ravel()])


def _parted(message: jax.Array, like: Pair) -> Pair:
    """Undo `_joined`, for arrays of these shapes."""
    if like[0].shape == like[1].shape:
        return message[0], message[1]
    first, second = jnp.split(message, [like[0].size])
    return first.reshape(like[0].shape), second.reshape(like[1].shape)


def _packed(kv: Pair, gradients: Pair) -> jax.Array:
    """Pack both pairs into one array: float32, or 16-bit words if keys and values have 16 bits."""
    parts = [_joined(pair) for pair in (kv, gradients)]
    if parts[0].dtype != jnp.float32:
        parts = [lax.bitcast_convert_type(part, jnp.uint16) for part in parts]
        parts[1] = parts[1].reshape(*parts[0].shape[:-1], -1)
    return jnp.concatenate(parts, -1)


def _unpacked(message: jax.Array, like: Pair) -> tuple[Pair, Pair]:
    """Undo `_packed`, for keys and values like these."""
    dtype = like[0].dtype
    width = message.shape[-1] // (2 if dtype == jnp.float32 else 3)
    kv, gradients = message[..., :width], message[..., width:]
    if dtype != jnp.float32:
        kv = lax.bitcast_convert_type(kv, dtype)
        gradients = lax.bitcast_convert_type(gradients.reshape(*gradients.shape[:-1], width, 2), jnp.float32)
    return _parted(kv, like), _parted(gradients, like)


def _forward(ring: _Ring, q: jax.Array, k: jax.Array, v: jax.Array, row: RowTokens) -> tuple[OutputAndLse, tuple]:
    attend = lambda kv, step: merged(ring.backend).forward(ring.settings, q, *kv, ring.tokens(row, step))
    kv = ring.shift((k, v)) if ring.steps > 1 else None
    results = attend((k, v), 0)
    if kv is not None:

        def step(carry: tuple[Pair, Partial], step: jax.Array) -> tuple[tuple[Pair, Partial], None]:
            kv, results = carry
            following = ring.shift(kv)
            return (following, merge(results, attend(kv, step))), None

        kv, results = _scan_steps(step, (kv, results), range(1, ring.steps - 1))
        results = merge(results, attend(kv, ring.steps - 1))
    out, lse = name_residuals(results[0].astype(q.dtype), results[1])
    return (out, lse), (q, k, v, row, out, lse)


def _backward(ring: _Ring, residuals: tuple, cotangents: OutputAndLse) -> tuple:
    (q, k, v, row, out, lse), (d_out, d_lse) = residuals, cotangents
    delta = compute_delta(out, d_out, lse, d_lse)

    def differentiate(kv: Pair, step: jax.Array | int) -> tuple[jax.Array, Pair]:
        tokens = ring.tokens(row, step)
        dq, dk, dv = merged(ring.backend).backward(ring.settings, q, *kv, tokens, lse, delta, d_out)
        return dq, (dk, dv)

    def step(carry: tuple[Pair, jax.Array, Pair], step: jax.Array) -> tuple[tuple[Pair, jax.Array, Pair], None]:
        kv, dq, travelling = carry
        following, arriving, gradients = ring.shift_both(kv, travelling, lambda: differentiate(kv, step))
        dq, travelling = _add((dq, arriving), gradients)
        return (following, dq, travelling), None

    if ring.steps == 1:
        dq, (dk, dv) = differentiate((k, v), 0)
    else:
        first = ring.shift((k, v))
        kv = ring.shift(first) if ring.steps > 2 else None
        dq, travelling = differentiate(first, 1)
        if kv is not None:
            kv, dq, travelling = _scan_steps(step, (kv, dq, travelling), range(2, ring.steps - 1))
            dq, travelling = _add((dq, ring.shift(travelling, wrap=True)), differentiate(kv, ring.steps - 1))
        returned = ring.shift(travelling, 1 - ring.steps, wrap=True)
        dq, (dk, dv) = _add((dq, returned), differentiate((k, v), 0))
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None


def _scan_steps[Carry](step: Callable[[Carry, jax.Array], tuple[Carry, None]], carry: Carry, steps: range) -> Carry:
    """`step` for each of `steps`, as one loop; none where there are no steps."""
    return lax.scan(step, carry, jnp.array(steps))[0] if steps else carry


def _add[Tree](a: Tree, b: Tree) -> Tree:
    return jax.tree.map(jnp.add, a, b)


@custom_vjp(0)
def _attend(ring: _Ring, q: jax.Array, k: jax.Array, v: jax.Array, row: RowTokens) -> OutputAndLse:
    return _forward(ring, q, k, v, row)[0]


_attend.defvjp(_forward, _backward)
