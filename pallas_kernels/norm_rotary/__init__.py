"""RMSNorm over each head and the rotary embedding behind it, in one pass over memory."""

from pallas_kernels.norm_rotary.api import norm_rotary

__all__ = ["norm_rotary"]
