"""RMSNorm of each head and its rotary embedding in float64 NumPy: matrices of derivatives, and complex rotations."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.norm_rotary import norm_rotary

EPSILON = 1e-2
"""Large enough that it shows where it is missing."""


class Given(NamedTuple):
    """What is normed and rotated, and the gradient of the result."""

    x: Any
    scale: Any
    angles: Any
    d_out: Any


class Results(NamedTuple):
    """The heads, and the gradients of x and of the norm's scale."""

    out: Any
    d_x: Any
    d_scale: Any


def given(shape: tuple[int, int, int, int], dtype: str = "bfloat16") -> Given:
    """Of [batch, seq, heads, head_dim], with angles that turn several times."""
    draw = np.random.default_rng(0)
    batch, seq, _, width = shape
    x, d_out = (jnp.asarray(draw.normal(size=shape), dtype) for _ in range(2))
    scale = jnp.asarray(1 + 0.3 * draw.normal(size=width), "float32")
    return Given(x, scale, jnp.asarray(20 * draw.normal(size=(batch, seq, width // 2)), "float32"), d_out)


def expected(of: Given, magnitude: float = 1.0) -> Results:
    """In float64, each row by the matrix of its derivatives."""
    x, scale, angles, d_out = (np.asarray(one, np.float64) for one in of)
    width = x.shape[-1]
    factor = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON)
    turn = magnitude * np.exp(1j * angles)[:, :, None]
    pairs = lambda y: y[..., : width // 2] + 1j * y[..., width // 2 :]
    heads = lambda z: np.concatenate([z.real, z.imag], -1)
    out = heads(pairs(x * factor * scale) * turn)
    back = heads(pairs(d_out) * turn.conj())
    matrices = factor[..., None] * np.eye(width) - factor[..., None] ** 3 / width * x[..., :, None] * x[..., None, :]
    d_x = np.einsum("bshij,bshj->bshi", matrices, back * scale)
    return Results(out, d_x, (back * x * factor).sum((0, 1, 2)))


def by(implementation: str, of: Given, magnitude: float = 1.0, interpret: bool = False) -> Results:
    """By an implementation of `pallas_kernels`."""
    cos, sin = magnitude * jnp.cos(of.angles), magnitude * jnp.sin(of.angles)
    options: dict[str, Any] = {"epsilon": EPSILON, "implementation": implementation, "interpret": interpret}
    out, pull = jax.vjp(lambda x, scale: norm_rotary(x, scale, cos, sin, **options), of.x, of.scale)
    return Results(out, *pull(of.d_out))


def errors(have: Results, wanted: Results) -> dict[str, float]:
    """Of each result, the largest error relative to its largest number; infinite where something is not finite."""
    found = {}
    for name, a, b in zip(Results._fields, have, wanted, strict=True):
        difference = np.abs(np.asarray(a, np.float64) - b)
        found[name] = difference.max() / np.abs(b).max() if np.isfinite(difference).all() else np.inf
    return found
