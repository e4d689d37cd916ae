"""The matmul by the block-scaled units of a Blackwell GPU: XLA makes a call of cuDNN of JAX's `scaled_matmul`.

These units multiply MXFP8: a scale, stored as a power of two in 8 bits, for each 32 codes of a row (OCP Microscaling
Formats v1.0). XLA pads what is no multiple of their tile of scales, 128 rows and 4 columns.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.choice import NEEDS_GPU
from pallas_kernels.tiled_matmul.request import Request
from pallas_kernels.varying import vary_over, varying_axes

TILE = 32
"""Codes of a row that have one scale."""


def refusal(request: Request) -> str | None:
    """None if the call supports the request, otherwise the reason."""
    capability = request.compute_capability
    if request.platform != "gpu":
        return f"{NEEDS_GPU}, and the platform is {request.platform}"
    if capability is None or int(capability) != 10:
        return f"it needs compute capability 10 (Blackwell), and the GPU has {capability or 'none'}"
    if request.groups is not None:
        return "it multiplies by one matrix, not by one for each group"
    if request.tile != TILE:
        return f"it multiplies tiles of {TILE}, not {request.tile}"
    if request.dtype not in ("bfloat16", "float32"):
        return f"it computes in bfloat16 or float32, not {request.dtype}"
    return None


def tiled_matmul(
    left: jax.Array, left_scales: jax.Array, right: jax.Array, right_scales: jax.Array, sizes: None, dtype: Any
) -> jax.Array:
    """Like `api.tiled_matmul`."""
    assert sizes is None, "groups are refused"
    powers = [scales.astype(jnp.float8_e8m0fnu)[None] for scales in (left_scales, right_scales)]
    out = jax.nn.scaled_matmul(left[None], right[None], *powers, preferred_element_type=dtype)[0]
    return vary_over(out, varying_axes(left))
