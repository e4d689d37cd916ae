"""Cross-entropy of a linear head whose logits never exist in memory."""

from pallas_kernels.linear_cross_entropy.api import TokenLoss, fused_linear_cross_entropy
from pallas_kernels.linear_cross_entropy.head import Head, Tile

__all__ = ["Head", "Tile", "TokenLoss", "fused_linear_cross_entropy"]
