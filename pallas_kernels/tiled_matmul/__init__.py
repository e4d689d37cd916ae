"""Matmuls of 8-bit codes with a scale for each 128 or 32 of a row, of two matrices or of groups of rows: XLA anywhere,
kernels on Hopper, cuDNN on Blackwell GPUs."""

from pallas_kernels.tiled_matmul.api import tiled_matmul, tiled_weight_gradients
from pallas_kernels.tiled_matmul.registry import REGISTRY, Request

__all__ = ["REGISTRY", "Request", "tiled_matmul", "tiled_weight_gradients"]
