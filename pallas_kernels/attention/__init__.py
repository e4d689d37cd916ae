"""Attention: the blockwise reference in plain JAX."""

from pallas_kernels.attention.reference import (
    SAVED_NAMES,
    Settings,
    Tokens,
    attention,
    attention_backward,
    attention_forward,
    name_results,
    output_products,
)

__all__ = [
    "SAVED_NAMES",
    "Settings",
    "Tokens",
    "attention",
    "attention_backward",
    "attention_forward",
    "name_results",
    "output_products",
]
