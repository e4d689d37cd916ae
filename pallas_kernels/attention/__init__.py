"""Attention: the blockwise reference in plain JAX."""

from pallas_kernels.attention.reference import SAVED_NAMES, attention

__all__ = ["SAVED_NAMES", "attention"]
