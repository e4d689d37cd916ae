"""Quantized tensors: values of 8 bits and scales, which are powers of two, so that scaling itself rounds nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from jaxpar.mesh.axes import varying_axes
from jaxpar.mesh.collectives import reduce_max
from jaxpar.precision.recipe import LARGEST
from pallas_kernels.varying import vary_alike

SMALLEST, MOST = -62, 62
"""Powers of two that scales may have: a product of two stays a normal float32."""


class QuantizedTensor(NamedTuple):
    """A quantized tensor, or several."""

    values: Shaped[Array, "... rows columns"]
    scales: Float[Array, "..."]
    """A scalar, or [..., row_tiles, column_tiles]."""

    @property
    def tiled(self) -> bool:
        """Whether tiles have scales."""
        return self.scales.ndim > 0


def largest_of(x: Float[Array, "..."]) -> Float[Array, ""]:
    """The largest magnitude of this rank's part of a tensor."""
    return jnp.max(jnp.abs(x)).astype(jnp.float32)


def largest_over(parts: Sequence[Array], axes: Sequence[str]) -> Float[Array, " tensors"]:
    """The largest magnitude of each tensor over the ranks of `axes`, which hold parts of it."""
    return max_over(jnp.stack([largest_of(x) for x in parts]), axes, parts)


def max_over(local: Float[Array, "..."], axes: Sequence[str], like: Sequence[Array]) -> Float[Array, "..."]:
    """The maximum over the ranks of those of `axes` over which `local` varies, typed as varying like `like`."""
    split = [axis for axis in axes if axis in varying_axes(local) and lax.axis_size(axis) > 1]
    return vary_alike((reduce_max(local, split) if split else local, *like))[0]


def scale_of(largest: Float[Array, "..."], form: str) -> Float[Array, "..."]:
    """The least power of two by which a tensor with the `largest` magnitude fits `form` when divided; 1 for zeros, and
    NaN where a magnitude is not finite."""
    bits = lax.bitcast_convert_type(largest.astype(jnp.float32), jnp.uint32)
    fraction, exponent = bits & 0x7FFFFF, (bits >> 23).astype(jnp.int32) - 127
    highest = {448.0: 8, 57344.0: 15}[LARGEST[form]]
    power = exponent - highest + (fraction > 0x600000).astype(jnp.int32)
    scale = lax.bitcast_convert_type((jnp.clip(power, SMALLEST, MOST) + 127) << 23, jnp.float32)
    return jnp.where(jnp.isfinite(largest), jnp.where(largest > 0, scale, 1.0), jnp.nan)


def quantize(x: Float[Array, "..."], scale: Float[Array, "..."], form: str) -> Shaped[Array, "..."]:
    """Values of `x` / `scale`, rounded to the nearest; what exceeds the format becomes its largest number."""
    most = LARGEST[form]
    return jnp.clip(x.astype(jnp.float32) / scale, -most, most).astype(form)


def quantize_tiles(x: Float[Array, "... rows columns"], tile: tuple[int, int], form: str) -> QuantizedTensor:
    """`x` quantized with a scale for each tile of `tile` rows and columns."""
    rows, columns = x.shape[-2] // tile[0], x.shape[-1] // tile[1]
    cut = x.astype(jnp.float32).reshape(*x.shape[:-2], rows, tile[0], columns, tile[1])
    scales = scale_of(jnp.max(jnp.abs(cut), axis=(-3, -1)), form)
    return QuantizedTensor(quantize(cut, scales[..., :, None, :, None], form).reshape(x.shape), scales)
