"""Attention's derivative, made of a forward and a backward of the same implementation.

**Rematerialisation.** The derivative keeps q, k, v, the output and the log-sum-exp. Under `jax.checkpoint` the last two
are known to the policy as the names in `SAVED_NAMES`; a policy that saves both never runs the forward again. It has to
get q, k and v from somewhere too: if it does not save them under names of the caller's, it recomputes what makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from pallas_kernels.attention.settings import Settings, Tokens
from pallas_kernels.varying import vary_alike
from pallas_kernels.vjp_parts import custom_vjp

SAVED_NAMES = ("attention_output", "attention_lse")
"""`checkpoint_name`s of the two results that the derivative keeps."""

type Results = tuple[jax.Array, jax.Array]
"""Output [batch, queries, heads, value_width], and float32 log-sum-exp [batch, queries, heads]."""


@dataclass(frozen=True)
class Kernels:
    """Attention over a subset of a row's keys, and the contribution of these keys to the gradients.

    `forward(settings, q, k, v, tokens)` gives output and log-sum-exp without a derivative; outputs over several sets
    of keys are merged by their log-sum-exp. `backward(settings, q, k, v, tokens, lse, inner, d_out)` gives (dq, dk,
    dv); `lse` is the log-sum-exp over all keys of the row, of which k and v may be some, and `inner` comes from
    `output_products`. All arrays must vary alike (`vary_alike`).
    """

    forward: Callable[..., Results]
    backward: Callable[..., tuple[jax.Array, jax.Array, jax.Array]]

    def attend(self, settings: Settings, q: jax.Array, k: jax.Array, v: jax.Array, tokens: Tokens) -> Results:
        """Attention whose output (in q's dtype) and log-sum-exp are both differentiable."""
        static = (self, replace(settings, results="inputs"))
        return _attend(static, *vary_alike(jax.tree.map(jnp.asarray, (q, k, v, tokens))))


type _Static = tuple[Kernels, Settings]


def _forward(static: _Static, q: jax.Array, k: jax.Array, v: jax.Array, tokens: Tokens) -> tuple[Results, tuple]:
    kernels, settings = static
    out, lse = kernels.forward(settings, q, k, v, tokens)
    out, lse = name_results(out.astype(q.dtype), lse)
    return (out, lse), (q, k, v, tokens, out, lse)


def _backward(static: _Static, residuals: tuple, cotangents: Results) -> tuple:
    kernels, settings = static
    q, k, v, tokens, out, lse = residuals
    d_out, d_lse = cotangents
    inner = output_products(out, d_out, lse, d_lse)
    gradients = kernels.backward(settings, q, k, v, tokens, lse, inner, d_out)
    return *(gradient.astype(x.dtype) for gradient, x in zip(gradients, (q, k, v), strict=True)), None


@custom_vjp(0)
def _attend(static: _Static, q: jax.Array, k: jax.Array, v: jax.Array, tokens: Tokens) -> Results:
    return _forward(static, q, k, v, tokens)[0]


_attend.defvjp(_forward, _backward)


def name_results(out: jax.Array, lse: jax.Array) -> Results:
    """Mark the two results that the derivative keeps, for remat policies."""
    return checkpoint_name(out, SAVED_NAMES[0]), checkpoint_name(lse, SAVED_NAMES[1])


def output_products(
    out: Float[Array, "batch queries heads value_width"],
    d_out: Float[Array, "batch queries heads value_width"],
    lse: Float[Array, "batch queries heads"],
    d_lse: Float[Array, "batch queries heads"] | float = 0.0,
) -> Float[Array, "batch queries heads"]:
    """The term subtracted from the gradient of every probability: sum(out * d_out) - d_lse, float32."""
    inner = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)
    return inner - jnp.where(lse == -jnp.inf, 0.0, d_lse)
