"""Backend: plain JAX, block by block, on any platform and for every mask."""

from __future__ import annotations

from jaxpar.attention.request import AttentionRequest
from pallas_kernels.attention import attention as attend

__all__ = ["attend", "supports"]


def supports(request: AttentionRequest) -> None:
    """It computes everything that can be asked for."""
