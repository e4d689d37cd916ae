"""Products of groups of rows with a matrix for each group, as experts need them."""

from pallas_kernels.grouped_matmul.api import grouped_matmul
from pallas_kernels.grouped_matmul.feed_forward import Matrices, grouped_feed_forward

__all__ = ["Matrices", "grouped_feed_forward", "grouped_matmul"]
