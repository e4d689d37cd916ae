"""Statistics that layers collect in their backward: maxima over layers, microbatches and ranks.

A layer takes zeros, and the cotangents of these zeros are what it observed.
"""

from __future__ import annotations

from functools import reduce

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.vjp_parts import custom_vjp

type Maxima = Float[Array, "*layers values"]
"""The statistics of a layer, or of all layers of the model."""


@custom_vjp(1)
def for_each_use(zeros: Maxima, uses: int) -> tuple[Maxima, ...]:
    """`zeros` once for each use; their cotangents are joined."""
    return (zeros,) * uses


for_each_use.defvjp(
    lambda zeros, uses: ((zeros,) * uses, None), lambda uses, _, observed: (reduce(jnp.maximum, observed),)
)
