"""The custom VJP of attention, built from the forward and backward of one backend.

**Rematerialisation.** The residuals are q, k, v, the output and the log-sum-exp. Under `jax.checkpoint` a policy knows
the last two by `CHECKPOINT_NAMES`; one that saves both never runs the forward of attention again. Unless the policy
also saves q, k and v, under names that the caller gives them, the projections that produce them are recomputed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from pallas_kernels.attention.settings import MaskInputs, Settings
from pallas_kernels.varying import vary_alike
from pallas_kernels.vjp_parts import custom_vjp

CHECKPOINT_NAMES = ("attention_output", "attention_lse")
"""`checkpoint_name`s of the output and the log-sum-exp, which are residuals."""

type OutputAndLse = tuple[jax.Array, jax.Array]
"""Output [batch, queries, heads, value_width], and float32 log-sum-exp [batch, queries, heads]."""
type Gradients = tuple[jax.Array, jax.Array, jax.Array]
"""Gradients of q [batch, queries, heads, width], k [batch, keys, kv_heads, width] and v, as wide as values."""


@dataclass(frozen=True)
class ForwardBackward:
    """Attention over one block of a sequence's keys and values (as in ring attention), and the gradients of the block.

    `forward(settings, q, k, v, tokens)` gives output and log-sum-exp of one block, and is not differentiable; outputs
    over several blocks are merged by their log-sum-exp. `backward(settings, q, k, v, tokens, lse, delta, d_out)` gives
    (dq, dk, dv); `lse` is the log-sum-exp over all blocks of the sequence, and `delta` comes from `compute_delta`. All
    arrays must have the same varying manual axes under `shard_map` (`vary_alike`).
    """

    forward: Callable[..., OutputAndLse]
    backward: Callable[..., Gradients]

    def attend(self, settings: Settings, q: jax.Array, k: jax.Array, v: jax.Array, tokens: MaskInputs) -> OutputAndLse:
        """Attention whose output (in q's dtype) and log-sum-exp are both differentiable."""
        static = (self, replace(settings, results="inputs"))
        return _attend(static, *vary_alike(jax.tree.map(jnp.asarray, (q, k, v, tokens))))


type _Static = tuple[ForwardBackward, Settings]


def _forward(
    static: _Static, q: jax.Array, k: jax.Array, v: jax.Array, tokens: MaskInputs
) -> tuple[OutputAndLse, tuple]:
    kernels, settings = static
    out, lse = kernels.forward(settings, q, k, v, tokens)
    out, lse = name_residuals(out.astype(q.dtype), lse)
    return (out, lse), (q, k, v, tokens, out, lse)


def _backward(static: _Static, residuals: tuple, cotangents: OutputAndLse) -> tuple:
    kernels, settings = static
    q, k, v, tokens, out, lse = residuals
    d_out, d_lse = cotangents
    delta = compute_delta(out, d_out, lse, d_lse)
    gradients = kernels.backward(settings, q, k, v, tokens, lse, delta, d_out)
    return *(gradient.astype(x.dtype) for gradient, x in zip(gradients, (q, k, v), strict=True)), None


@custom_vjp(0)
def _attend(static: _Static, q: jax.Array, k: jax.Array, v: jax.Array, tokens: MaskInputs) -> OutputAndLse:
    return _forward(static, q, k, v, tokens)[0]


_attend.defvjp(_forward, _backward)


def name_residuals(out: jax.Array, lse: jax.Array) -> OutputAndLse:
    """Name the output and the log-sum-exp for remat policies."""
    return checkpoint_name(out, CHECKPOINT_NAMES[0]), checkpoint_name(lse, CHECKPOINT_NAMES[1])


def compute_delta(
    out: Float[Array, "batch queries heads value_width"],
    d_out: Float[Array, "batch queries heads value_width"],
    lse: Float[Array, "batch queries heads"],
    d_lse: Float[Array, "batch queries heads"] | float = 0.0,
) -> Float[Array, "batch queries heads"]:
    """sum(out * d_out) - d_lse, float32. The gradient of scores is probabilities * (d_probabilities - delta)."""
    delta = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)
    return delta - jnp.where(lse == -jnp.inf, 0.0, d_lse)  # the log-sum-exp of a fully masked query is constant
