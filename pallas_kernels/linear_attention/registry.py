"""Implementations of the state through chunks, what each supports, and which one is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pallas_kernels import choice
from pallas_kernels.choice import Registry
from pallas_kernels.linear_attention import derivative, mosaic, reference
from pallas_kernels.linear_attention.request import Request

__all__ = ["REGISTRY", "Implementation", "Request"]


@dataclass(frozen=True)
class Implementation(choice.Implementation):
    """The function that differs between implementations (see `reference`)."""

    scan_chunks: Callable[..., Any]


REGISTRY = Registry(
    "linear_attention",
    "linear attention",
    (
        Implementation("mosaic", mosaic.refusal, derivative.scan_chunks, recorded=True),
        Implementation("xla", lambda request: None, reference.scan_chunks),
    ),
)
"""`xla` is the plain JAX form, the reference of the other."""
