"""Implementations of the matmul of codes with scales of tiles, what each supports, and which one is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from pallas_kernels import choice
from pallas_kernels.choice import Chosen, by_name, logged
from pallas_kernels.tiled_matmul import cudnn, mosaic, reference
from pallas_kernels.tiled_matmul.request import Request

__all__ = ["IMPLEMENTATIONS", "Implementation", "Request", "choose", "chosen", "implementation"]


@dataclass(frozen=True)
class Implementation(choice.Implementation):
    """The function that differs between implementations (see `reference`)."""

    operation: ClassVar[str] = "tiled_matmul"

    tiled_matmul: Callable[..., Any]


IMPLEMENTATIONS = (
    Implementation("mosaic", mosaic.refusal, mosaic.tiled_matmul, recorded=True),
    Implementation("cudnn", cudnn.refusal, cudnn.tiled_matmul),
    Implementation("xla", lambda request: None, reference.tiled_matmul),
)
"""In order of preference; `xla` is the plain JAX form, the reference of the others."""


def implementation(name: str) -> Implementation:
    """The entry called `name`."""
    return by_name(IMPLEMENTATIONS, name)


def choose(name: str, request: Request, *, named_by: str = "the call names") -> Chosen:
    """See `pallas_kernels.choice.choose`."""
    return choice.choose("a matmul of tiles", name, request, IMPLEMENTATIONS, named_by=named_by)


@cache
def chosen(name: str, request: Request) -> Chosen:
    """`choose`, with a line of the log the first time: as a warning where what was named is not verified."""
    return logged("matmul of tiles", choose(name, request), request)
