"""RMSNorm of each head and its rotary embedding for NVIDIA GPUs since Ampere, through Pallas' Triton lowering.

A program has some tokens and goes through some of their heads, one at a time. Cosines and sines of its tokens stay in
registers. Both halves of a head are arrays of their own, so that the rotation moves nothing between threads. Where half
a head is no power of two, what is loaded beside it is masked.

The derivative turns the gradient back, and makes of it and x the gradient of x and, summed over the program's rows,
that of the norm's scale: a row of sums for each program, which are added up afterwards. Nothing is added by atomics,
so results are the same bits in every run.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels.pallas import pl
from pallas_kernels.pallas import triton as plgpu
from pallas_kernels.ranges import Range, both, load
from pallas_kernels.varying import vary_alike

HEADS = 8
"""Of a program, at most: its tokens' cosines and sines are loaded once for so many."""
ELEMENTS = 1024
"""Of half a head, over the tokens of a program: 8 in a register of each thread."""
WARPS = 4


class _Tile(NamedTuple):
    """The part of the arrays that a program has at a time."""

    tokens: int
    heads: int
    half: int
    """Of a head, rounded up to a power of two."""

    def programs(self, tokens: int, heads: int) -> int:
        """Of arrays with so many tokens and heads."""
        return pl.cdiv(tokens, self.tokens) * pl.cdiv(heads, self.heads)


def _tile(heads: int, width: int) -> _Tile:
    half = pl.next_power_of_2(width // 2)
    return _Tile(max(1, ELEMENTS // half), min(HEADS, heads), half)


def forward(
    x: Float[Array, "tokens heads head_dim"],
    scale: Float[Array, " head_dim"],
    cos: Float[Array, "tokens half"],
    sin: Float[Array, "tokens half"],
    *,
    epsilon: float,
    interpret: bool = False,
) -> Float[Array, "tokens heads head_dim"]:
    """As `pallas_kernels.norm_rotary.reference.forward`."""
    return _call(_forward_kernel, "forward", (x, scale, cos, sin), epsilon, interpret)[0]


def backward(
    x: Float[Array, "tokens heads head_dim"],
    scale: Float[Array, " head_dim"],
    cos: Float[Array, "tokens half"],
    sin: Float[Array, "tokens half"],
    d_out: Float[Array, "tokens heads head_dim"],
    *,
    epsilon: float,
    interpret: bool = False,
) -> tuple[Float[Array, "tokens heads head_dim"], Float[Array, " head_dim"]]:
    """As `pallas_kernels.norm_rotary.reference.backward`."""
    given = x, scale, cos, sin, d_out
    d_x, sums = _call(_backward_kernel, "backward", given, epsilon, interpret, sums=True)
    return d_x, jnp.sum(sums, axis=0).astype(scale.dtype)


def _call(
    kernel: Any, name: str, given: tuple[jax.Array, ...], epsilon: float, interpret: bool, sums: bool = False
) -> Any:
    given = vary_alike(given)
    x, varying = given[0], jax.typeof(given[0]).manual_axis_type
    tokens, heads, width = x.shape
    tile = _tile(heads, width)
    programs = tile.programs(tokens, heads)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype, manual_axis_type=varying)]
    if sums:
        shapes.append(jax.ShapeDtypeStruct((programs, width), jnp.float32, manual_axis_type=varying))
    return pl.pallas_call(
        partial(kernel, tile, epsilon),
        grid=(programs,),
        out_shape=tuple(shapes),
        compiler_params=plgpu.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name=f"norm_rotary_{name}",
    )(*given)


class _Part(NamedTuple):
    """What a program has: its tokens, its heads [first, end), both halves of a head, and of its tokens the angles."""

    rows: Range
    first: jax.Array
    end: jax.Array
    halves: tuple[Range, Range]
    cos: jax.Array
    sin: jax.Array
    scales: tuple[jax.Array, jax.Array]

    def load(self, ref: Any, head: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Both halves of a head of the program's tokens, float32; zeros outside."""
        return self._load(ref, head, self.halves[0]), self._load(ref, head, self.halves[1])

    def _load(self, ref: Any, head: jax.Array, half: Range) -> jax.Array:
        mask = both(self.rows, half)
        place = ref.at[self.rows.slice, head, half.slice]
        return plgpu.load(place, mask=mask, other=None if mask is None else 0.0).astype(jnp.float32)

    def store(self, ref: Any, head: jax.Array, values: tuple[jax.Array, jax.Array]) -> None:
        """Round and write both halves of a head."""
        for half, value in zip(self.halves, values, strict=True):
            place = ref.at[self.rows.slice, head, half.slice]
            plgpu.store(place, value.astype(ref.dtype), mask=both(self.rows, half))


def _part(tile: _Tile, x_ref: Any, scale_ref: Any, cos_ref: Any, sin_ref: Any) -> _Part:
    """The part of this program: those of the same tokens follow each other, and find their angles in a cache."""
    tokens, heads, width = x_ref.shape
    groups, whole = pl.cdiv(heads, tile.heads), tile.half * 2 == width
    program = pl.program_id(0)
    rows = Range(program // groups * tile.tokens, tile.tokens, tokens, tokens % tile.tokens == 0)
    first = program % groups * tile.heads
    end = jnp.minimum(first + tile.heads, heads)
    zero = 0 * program  # of a slice whose start is known Pallas refuses what lies outside, though it is masked
    low, high = (Range(zero + side * width // 2, tile.half, (side + 1) * width // 2, whole) for side in range(2))
    cos, sin = (load(ref, rows, low).astype(jnp.float32) for ref in (cos_ref, sin_ref))
    of_low, of_high = (half.load(scale_ref, other=0.0).astype(jnp.float32)[None, :] for half in (low, high))
    return _Part(rows, first, end, (low, high), cos, sin, (of_low, of_high))


def _factor(a: jax.Array, b: jax.Array, width: int, epsilon: float) -> jax.Array:
    """Of each token: one over the root of the mean of squares of a head."""
    return lax.rsqrt(jnp.sum(a * a + b * b, axis=1) / width + epsilon)[:, None]


def _forward_kernel(tile: _Tile, epsilon: float, x_ref, scale_ref, cos_ref, sin_ref, out_ref):
    part, width = _part(tile, x_ref, scale_ref, cos_ref, sin_ref), x_ref.shape[2]

    def of_head(head: jax.Array, carry: None) -> None:
        a, b = part.load(x_ref, head)
        factor = _factor(a, b, width, epsilon)
        a, b = a * factor * part.scales[0], b * factor * part.scales[1]
        part.store(out_ref, head, (a * part.cos - b * part.sin, b * part.cos + a * part.sin))
        return carry

    lax.fori_loop(part.first, part.end, of_head, None)


def _backward_kernel(tile: _Tile, epsilon: float, x_ref, scale_ref, cos_ref, sin_ref, d_out_ref, d_x_ref, sums_ref):
    part, width = _part(tile, x_ref, scale_ref, cos_ref, sin_ref), x_ref.shape[2]

    def of_head(head: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, b = part.load(x_ref, head)
        d_a, d_b = part.load(d_out_ref, head)
        d_a, d_b = d_a * part.cos + d_b * part.sin, d_b * part.cos - d_a * part.sin  # of what was rotated
        factor = _factor(a, b, width, epsilon)
        a, b = a * factor, b * factor
        sums = sums[0] + d_a * a, sums[1] + d_b * b
        d_a, d_b = d_a * part.scales[0], d_b * part.scales[1]
        along = (jnp.sum(d_a * a + d_b * b, axis=1) / width)[:, None]
        part.store(d_x_ref, head, (factor * (d_a - a * along), factor * (d_b - b * along)))
        return sums

    zeros = jnp.zeros((tile.tokens, tile.half), jnp.float32)
    sums = lax.fori_loop(part.first, part.end, of_head, (zeros, zeros))
    for half, value in zip(part.halves, sums, strict=True):
        plgpu.store(sums_ref.at[pl.program_id(0), half.slice], jnp.sum(value, axis=0), mask=half.inside)
