"""Implementations of the grouped matmul of codes with scales of tiles, what each supports, and which one is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pallas_kernels import choice
from pallas_kernels.choice import Registry
from pallas_kernels.grouped_tiled_matmul import mosaic, reference
from pallas_kernels.grouped_tiled_matmul.request import Request

__all__ = ["REGISTRY", "Implementation", "Request"]


@dataclass(frozen=True)
class Implementation(choice.Implementation):
    """The functions that differ between implementations."""

    grouped_tiled_matmul: Callable[..., Any]
    of_weights: Callable[..., Any]
    by_numbers: bool = False
    """Whether it multiplies what the codes stand for, and takes the name of what does (`numbers_by`)."""


REGISTRY = Registry(
    "grouped_tiled_matmul",
    "a grouped matmul of tiles",
    (
        Implementation("mosaic", mosaic.refusal, mosaic.grouped_tiled_matmul, mosaic.of_weights, recorded=True),
        Implementation(
            "xla", lambda request: None, reference.grouped_tiled_matmul, reference.of_weights, by_numbers=True
        ),
    ),
)
"""`xla` is the plain JAX form, the reference of the other."""
