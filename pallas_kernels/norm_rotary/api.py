"""`norm_rotary`: RMSNorm of each head and its rotary embedding, with gradients, on any platform.

The derivative needs the input only: it makes the sums of squares again, in the pass that makes the gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels.device import INTERPRETER, target
from pallas_kernels.norm_rotary.registry import REGISTRY, Request
from pallas_kernels.varying import vary_alike


def norm_rotary(
    x: Float[Array, "batch seq heads head_dim"],
    scale: Float[Array, " head_dim"],
    cos: Float[Array, "batch seq half"],
    sin: Float[Array, "batch seq half"],
    *,
    epsilon: float,
    implementation: str = "auto",
    interpret: bool = False,
) -> Float[Array, "batch seq heads head_dim"]:
    """Dims (i, i + head_dim / 2) of `scale * x / sqrt(mean(x^2) + epsilon)`, rotated by the token's i-th angle.

    The mean is over the dims of a head (arXiv:1910.07467), the rotation is in split halves (arXiv:2104.09864). All of
    it is computed in float32 and rounded once, to x's dtype. There are gradients for x and scale, and none for cosines
    and sines, which are constants of a position.

    Args:
        x: Queries or keys of this device.
        scale: Of each dim of a head, the same for all heads.
        cos: Cosines of each token's angles, times the magnitude of the embedding if it has one, float32.
        sin: Sines likewise.
        epsilon: Added to the mean of squares.
        implementation: `auto`, or by name: see `registry.REGISTRY`.
        interpret: Run the kernels in Pallas' interpreter, for tests.

    Raises:
        ValueError: If shapes or dtypes do not fit together, or what is named does not support them.
    """
    _check(x, scale, cos, sin)
    device = INTERPRETER if interpret else target()
    batch, seq, heads, width = x.shape
    request = Request(batch * seq, heads, width, dtype=str(x.dtype), **device._asdict())
    static = _Static(REGISTRY.chosen(implementation, request).name, epsilon, interpret)
    flat = x.reshape(batch * seq, heads, width)
    tables = (lax.stop_gradient(table).reshape(batch * seq, width // 2) for table in (cos, sin))
    return _normed(static, *vary_alike((flat, scale, *tables))).reshape(x.shape)


class _Static(NamedTuple):
    name: str
    epsilon: float
    interpret: bool

    @property
    def options(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon} | ({"interpret": True} if self.interpret else {})


def _forward(static: _Static, *given: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return REGISTRY[static.name].forward(*given, **static.options), given


def _backward(static: _Static, kept: tuple[jax.Array, ...], d_out: jax.Array) -> tuple[Any, ...]:
    return *REGISTRY[static.name].backward(*kept, d_out, **static.options), None, None


def _whole(static: _Static, *given: jax.Array) -> jax.Array:
    return _forward(static, *given)[0]


_normed = jax.custom_vjp(_whole, nondiff_argnums=(0,))
_normed.defvjp(_forward, _backward)


def _check(x: jax.Array, scale: jax.Array, cos: jax.Array, sin: jax.Array) -> None:
    """Refuse shapes and dtypes that do not fit together."""
    shapes = f"x {x.shape}, scale {scale.shape}, cosines {cos.shape} and sines {sin.shape}"
    if x.ndim != 4 or 0 in x.shape or x.shape[-1] % 2:
        raise ValueError(f"x is [batch, seq, heads, head_dim] of an even head_dim, got {x.shape}")
    table = (*x.shape[:2], x.shape[-1] // 2)
    if scale.shape != x.shape[-1:] or cos.shape != table or sin.shape != table:
        raise ValueError(f"scale is [head_dim], cosines and sines are [batch, seq, head_dim / 2], got {shapes}")
    if not all(jnp.issubdtype(one.dtype, jnp.floating) for one in (x, scale, cos, sin)):
        dtypes = ", ".join(str(one.dtype) for one in (x, scale, cos, sin))
        raise ValueError(f"x, scale, cosines and sines are floating-point numbers, got {dtypes}")
