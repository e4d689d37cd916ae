"""Matmuls of 8-bit codes with a scale for each 128 or 32 of a row: XLA anywhere, a kernel on Hopper, cuDNN on
Blackwell GPUs."""

from pallas_kernels.tiled_matmul.api import tiled_matmul
from pallas_kernels.tiled_matmul.registry import IMPLEMENTATIONS, Request, choose

__all__ = ["IMPLEMENTATIONS", "Request", "choose", "tiled_matmul"]
