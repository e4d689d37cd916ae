"""Products of groups of rows with a matrix for each group, as experts need them."""

from pallas_kernels.grouped_matmul.api import grouped_matmul

__all__ = ["grouped_matmul"]
