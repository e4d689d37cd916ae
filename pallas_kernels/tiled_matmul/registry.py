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
    """The function that differs between implementations (see `reference`)."""

    tiled_matmul: Callable[..., Any]


REGISTRY = Registry(
    "tiled_matmul",
    "a matmul of tiles",
    (
        Implementation("mosaic", mosaic.refusal, mosaic.tiled_matmul, recorded=True),
        Implementation("cudnn", cudnn.refusal, cudnn.tiled_matmul),
        Implementation("xla", lambda request: None, reference.tiled_matmul),
    ),
)
"""`xla` is the plain JAX form, the reference of the others."""
