"""Products of groups of rows in 8-bit codes with a matrix of codes for each group, as experts in FP8 need them."""

from pallas_kernels.grouped_tiled_matmul.api import grouped_tiled_matmul, grouped_tiled_weight_gradients
from pallas_kernels.grouped_tiled_matmul.registry import REGISTRY, Request

__all__ = ["REGISTRY", "Request", "grouped_tiled_matmul", "grouped_tiled_weight_gradients"]
