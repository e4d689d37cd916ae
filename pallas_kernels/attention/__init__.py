"""Attention: `flash_attention`, its implementations, the registry that picks one, and the form in plain JAX."""

from pallas_kernels.attention.derivative import CHECKPOINT_NAMES, ForwardBackward, compute_delta, name_residuals
from pallas_kernels.attention.reference import attention, attention_backward, attention_forward
from pallas_kernels.attention.settings import MaskInputs, Settings

__all__ = [
    "CHECKPOINT_NAMES",
    "ForwardBackward",
    "MaskInputs",
    "Settings",
    "attention",
    "attention_backward",
    "attention_forward",
    "compute_delta",
    "name_residuals",
]
