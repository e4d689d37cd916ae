"""`grouped_feed_forward`: the gated feed-forward of each row's group, whose hidden activation may be made by the kernel
that multiplies up and gate."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from pallas_kernels.device import INTERPRETER
from pallas_kernels.grouped_matmul.api import Static, check, request_of
from pallas_kernels.grouped_matmul.registry import REGISTRY
from pallas_kernels.grouped_matmul.work import expecting
from pallas_kernels.varying import vary_alike


class Matrices(NamedTuple):
    """Of all groups."""

    up: Float[Array, "groups k n"]
    gate: Float[Array, "groups k n"]
    down: Float[Array, "groups n k"]


def grouped_feed_forward(
    rows: Float[Array, "m k"],
    matrices: Matrices,
    group_sizes: Int[Array, " groups"],
    factors: Float[Array, " m"],
    *,
    implementation: str = "auto",
    expected: int | None = None,
    names: tuple[str, str] = ("up", "gate"),
    interpret: bool = False,
) -> Float[Array, "m k"]:
    """`(SiLU(row @ gate) * (row @ up) * factor) @ down` for each row, with the matrices of its group.

    It has gradients for rows, matrices and factors. A kernel computes the hidden activation from the float32 sums of
    both products. What is kept for the backward is up and gate in rows' dtype: the derivative makes the hidden
    activation again, in the pass over memory that makes their gradients.

    Args:
        rows: As in `grouped_matmul`, and so are `group_sizes`, `implementation`, `expected` and `interpret`.
        matrices: In rows' dtype.
        factors: Of the hidden activation of each row: a router's weights.
        names: `checkpoint_name`s of up and gate, for a policy that keeps them.

    Raises:
        ValueError: If shapes or dtypes do not fit together, or what is named does not support them.
    """
    for weights in (matrices.up, matrices.gate):
        check(rows, weights, group_sizes)
    if matrices.up.shape != matrices.gate.shape or matrices.down.shape != matrices.up.mT.shape:
        shapes = ", ".join(f"{name} {value.shape}" for name, value in matrices._asdict().items())
        raise ValueError(f"a feed-forward has up and gate [groups, k, n] and down [groups, n, k], got {shapes}")
    if factors.shape != rows.shape[:1]:
        raise ValueError(f"there is a factor for each of {rows.shape[0]} rows, got {factors.shape}")
    name = REGISTRY.chosen(implementation, request_of(rows, matrices.up, INTERPRETER if interpret else None)).name
    static = _Static(Static(name, rows.shape[0] if expected is None else expected, interpret), names)
    return _feed_forward(static, *vary_alike((rows, matrices, group_sizes, factors)))


class _Static(NamedTuple):
    products: Static
    names: tuple[str, str]

    def gated(self, rows: jax.Array, w: Matrices, sizes: jax.Array, factors: jax.Array) -> tuple[jax.Array, ...]:
        """(hidden activation times the factors, up, gate)."""
        found, options = REGISTRY[self.products.name], {"interpret": True} if self.products.interpret else {}
        if found.gated is not None:
            with expecting(self.products.expected):
                return found.gated(rows, w.up, w.gate, sizes, factors, **options)
        up, gate = (self.products.times_weights(rows, each, sizes, transposed=False) for each in (w.up, w.gate))
        return (_hidden(up, gate) * factors[:, None]).astype(rows.dtype), up, gate


def _hidden(up: jax.Array, gate: jax.Array) -> jax.Array:
    return jax.nn.silu(gate.astype(jnp.float32)) * up.astype(jnp.float32)


def _forward(
    static: _Static, rows: jax.Array, w: Matrices, sizes: jax.Array, factors: jax.Array
) -> tuple[jax.Array, tuple]:
    hidden, up, gate = static.gated(rows, w, sizes, factors)
    up, gate = (checkpoint_name(value, name) for value, name in zip((up, gate), static.names, strict=True))
    out = static.products.times_weights(hidden, w.down, sizes, transposed=False)
    return out, (rows, w, sizes, factors, up, gate)


def _backward(static: _Static, kept: tuple, d_out: jax.Array) -> tuple:
    rows, w, sizes, factors, up, gate = kept
    product, of_weights = static.products.times_weights, static.products.of_weights
    d_hidden = product(d_out, w.down, sizes, transposed=True).astype(jnp.float32)
    found, pull = jax.vjp(_hidden, up, gate)
    column = factors.astype(jnp.float32)[:, None]
    d_factors = jnp.sum(d_hidden * found, axis=1).astype(factors.dtype)
    d_up, d_gate = pull(d_hidden * column)
    d_down = of_weights((found * column).astype(rows.dtype), d_out, sizes)
    d_rows = product(d_up, w.up, sizes, transposed=True) + product(d_gate, w.gate, sizes, transposed=True)
    return d_rows, Matrices(of_weights(rows, d_up, sizes), of_weights(rows, d_gate, sizes), d_down), None, d_factors


def _whole(static: _Static, rows: jax.Array, w: Matrices, sizes: jax.Array, factors: jax.Array) -> jax.Array:
    return _forward(static, rows, w, sizes, factors)[0]


_feed_forward = jax.custom_vjp(_whole, nondiff_argnums=(0,))
_feed_forward.defvjp(_forward, _backward)
