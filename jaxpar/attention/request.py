"""What a run asks of attention: all that a choice between implementations may rest on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionRequest:
    """Attention of one layer on one device."""

    platform: str
    """As `jax.Device.platform` has it: `cpu` or `gpu`."""
    dtype: str
    """Of queries, keys and values."""
    heads: int
    """Query heads on the device."""
    kv_heads: int
    """Key and value heads on the device."""
    head_dim: int
    """Width of a head."""
    packed: bool
    """Whether documents that share a row are kept apart."""
    window: int | None
    """Slots that a query sees, itself included; None means no limit."""
    softcap: float | None
    """Cap of the scores."""
    prefix: bool
    """Whether the first slots of a row are seen by all of its queries."""
    sequence: int
    """Tokens per row, over all devices."""
    context: int
    """Devices that a row's sequence is split over."""
    compute_capability: float | None = None
    """Of the GPU (9.0 is Hopper); None where there is none."""
