"""Scales of codes of 8 bits: powers of two, so that scaling itself rounds nothing."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from jaxpar.precision.recipe import LARGEST

SMALLEST, MOST = -62, 62
"""Powers of two that scales may have: a product of two stays a normal float32."""


def largest_of(x: Float[Array, "..."]) -> Float[Array, ""]:
    """The largest magnitude of this rank's part of a tensor."""
    return jnp.max(jnp.abs(x)).astype(jnp.float32)


def scale_of(largest: Float[Array, "..."], form: str) -> Float[Array, "..."]:
    """The least power of two by which a tensor with the `largest` magnitude fits `form` when divided; 1 for zeros, and
    NaN where a magnitude is not finite."""
    bits = lax.bitcast_convert_type(largest.astype(jnp.float32), jnp.uint32)
    fraction, exponent = bits & 0x7FFFFF, (bits >> 23).astype(jnp.int32) - 127
    highest = {448.0: 8, 57344.0: 15}[LARGEST[form]]
    power = exponent - highest + (fraction > 0x600000).astype(jnp.int32)
    scale = lax.bitcast_convert_type((jnp.clip(power, SMALLEST, MOST) + 127) << 23, jnp.float32)
    return jnp.where(jnp.isfinite(largest), jnp.where(largest > 0, scale, 1.0), jnp.nan)


def quantise(x: Float[Array, "..."], scale: Float[Array, "..."], form: str) -> Shaped[Array, "..."]:
    """Codes of `x` / `scale`, rounded to the nearest; what exceeds the format becomes its largest number."""
    most = LARGEST[form]
    return jnp.clip(x.astype(jnp.float32) / scale, -most, most).astype(form)
