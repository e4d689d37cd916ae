"""Kinds of masks that tiles are chosen by: what a mask leaves of the blocks at its edges."""

from __future__ import annotations

from typing import Literal, get_args

from pallas_kernels.masks import Mask

type Kind = Literal["full", "causal", "window", "packed"]

KINDS: tuple[Kind, ...] = get_args(Kind.__value__)


def kind_of(mask: Mask) -> Kind:
    """Documents before a window before causality: that which cuts a row into the shortest pieces."""
    if mask.segmented:
        return "packed"
    if mask.window is not None:
        return "window"
    return "causal" if mask.causal else "full"
