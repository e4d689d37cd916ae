"""Attention: the blockwise reference in plain JAX."""

from pallas_kernels.attention.reference import attention

__all__ = ["attention"]
