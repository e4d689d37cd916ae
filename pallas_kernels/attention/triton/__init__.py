"""Attention kernels for Ampere and later GPUs, in Pallas lowered to Triton.

Forward and backward are those of FlashAttention-2 (arXiv:2307.08691); blocks of pairs that the mask empties are never
read, by lists of blocks made outside of the kernels, and the mask is looked at only in blocks that it cuts, as in
FlexAttention (arXiv:2412.05496). Nothing is added up by atomics: results are the same bits in every run.
"""

from __future__ import annotations

from pallas_kernels.attention.derivative import ForwardBackward
from pallas_kernels.attention.request import Request
from pallas_kernels.attention.triton.backward import backward
from pallas_kernels.attention.triton.forward import forward
from pallas_kernels.attention.triton.tiles import widths
from pallas_kernels.choice import refused_by_gpu

__all__ = ["KERNELS", "backward", "forward", "refusal"]

KERNELS = ForwardBackward(forward, backward)


def refusal(request: Request) -> str | None:
    """None if the kernels support the request, otherwise the reason."""
    if (reason := refused_by_gpu(request)) is not None:
        return reason
    if (request.width, request.value_width) not in widths():
        listed = ", ".join(f"{wide}" if wide == value else f"{wide}/{value}" for wide, value in widths())
        return f"its heads have a width of {listed}, not {request.width}/{request.value_width}"
    return None
