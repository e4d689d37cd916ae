"""Implementations of the grouped matmul, what each supports, and which one is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pallas_kernels import choice
from pallas_kernels.choice import Registry, refused_by_gpu
from pallas_kernels.grouped_matmul import mosaic, reference, triton
from pallas_kernels.grouped_matmul.request import Request

__all__ = ["REGISTRY", "Implementation", "Request"]


@dataclass(frozen=True)
class Implementation(choice.Implementation):
    """The two functions that differ between implementations (see `reference`)."""

    times_weights: Callable[..., Any]
    of_weights: Callable[..., Any]


REGISTRY = Registry(
    "grouped_matmul",
    "a grouped matmul",
    (
        Implementation("mosaic", mosaic.refusal, mosaic.times_weights, mosaic.of_weights, recorded=True),
        Implementation("triton", refused_by_gpu, triton.times_weights, triton.of_weights, recorded=True),
        Implementation("xla", lambda request: None, reference.times_weights, reference.of_weights),
    ),
)
"""`xla` is the plain JAX form, the reference of the others."""
