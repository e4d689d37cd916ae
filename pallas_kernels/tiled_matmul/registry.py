"""Implementations of the matmul of codes with scales of tiles, what each supports, and which one is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pallas_kernels import choice
from pallas_kernels.choice import Registry
from pallas_kernels.tiled_matmul import cudnn, mosaic, reference
from pallas_kernels.tiled_matmul.request import Request

__all__ = ["REGISTRY", "Implementation", "Request"]


@dataclass(frozen=True)
class Implementation(choice.Implementation):
    """The functions that differ between implementations (see `reference`)."""

    tiled_matmul: Callable[..., Any]
    of_weights: Callable[..., Any] | None = None
    """None if no request for gradients of weights is supported."""
    by_numbers: bool = False
    """Whether it multiplies what the codes stand for, and takes the name of what does (`numbers_by`)."""


class _OfKind(Registry[Implementation]):
    def kernel(self, name: str, request: Request) -> str:
        """Products of groups are another program than dense ones, and have a record of their own."""
        return f"{'' if request.groups is None else 'grouped_'}{super().kernel(name, request)}"


REGISTRY = _OfKind(
    "tiled_matmul",
    "a matmul of tiles",
    (
        Implementation("mosaic", mosaic.refusal, mosaic.tiled_matmul, mosaic.of_weights, recorded=True),
        Implementation("cudnn", cudnn.refusal, cudnn.tiled_matmul),
        Implementation("xla", lambda request: None, reference.tiled_matmul, reference.of_weights, by_numbers=True),
    ),
)
"""`xla` is the plain JAX form, the reference of the others."""
