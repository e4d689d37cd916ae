"""Kernels, the masks they share and their plain-JAX references. Imports nothing from jaxpar."""

from pallas_kernels.attention.api import flash_attention
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.linear_attention import scan_chunks
from pallas_kernels.tiled_matmul import tiled_matmul, tiled_weight_gradients

__all__ = [
    "flash_attention",
    "grouped_matmul",
    "scan_chunks",
    "tiled_matmul",
    "tiled_weight_gradients",
]
