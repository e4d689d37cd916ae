"""Values as the warpgroups of a kernel hold them: laid out as an accumulator of wgmma, or as its rows or columns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.pallas import mosaic_gpu as plgpu


def across(values: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Broadcast one value per row to a block."""
    return lax.broadcast_in_dim(values, shape, [0])


def down(values: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Broadcast one value per column to a block."""
    return lax.broadcast_in_dim(values, shape, [1])


def row_values(ref: Any) -> jax.Array:
    """A value for each row of a block, laid out as an accumulator's rows are."""
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA.reduce(1))


def column_values(ref: Any) -> jax.Array:
    """A value for each column of a block, laid out as an accumulator's columns are."""
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA.reduce(0))


def full(shape: tuple[int, ...], value: float) -> jax.Array:
    """A constant laid out as an accumulator, or as its rows."""
    layout = plgpu.Layout.WGMMA if len(shape) == 2 else plgpu.Layout.WGMMA.reduce(1)
    return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)
