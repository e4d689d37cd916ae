"""Matmuls of 8-bit codes with a scale for each 128 or 32 of a row: XLA anywhere, a kernel on Hopper, cuDNN on
Blackwell GPUs."""

from pallas_kernels.tiled_matmul.api import tiled_matmul
from pallas_kernels.tiled_matmul.registry import REGISTRY, Request

__all__ = ["REGISTRY", "Request", "tiled_matmul"]
