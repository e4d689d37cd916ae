"""Attention: `flash_attention`, its implementations, the registry that picks one, and the form in plain JAX."""

from pallas_kernels.attention.derivative import SAVED_NAMES, Kernels, name_results, output_products
from pallas_kernels.attention.reference import attention, attention_backward, attention_forward
from pallas_kernels.attention.settings import Settings, Tokens

__all__ = [
    "SAVED_NAMES",
    "Kernels",
    "Settings",
    "Tokens",
    "attention",
    "attention_backward",
    "attention_forward",
    "name_results",
    "output_products",
]
