"""Implementations of the grouped matmul of codes with scales of tiles, what each supports, and which one is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from pallas_kernels import choice
from pallas_kernels.choice import Chosen, by_name, logged
from pallas_kernels.grouped_tiled_matmul import mosaic, reference
from pallas_kernels.grouped_tiled_matmul.request import Request

__all__ = ["IMPLEMENTATIONS", "Implementation", "Request", "choose", "chosen", "implementation"]


@dataclass(frozen=True)
class Implementation(choice.Implementation):
    """The functions that differ between implementations."""

    operation: ClassVar[str] = "grouped_tiled_matmul"

    grouped_tiled_matmul: Callable[..., Any]
    of_weights: Callable[..., Any]
    by_numbers: bool = False
    """Whether it multiplies what the codes stand for, and takes the name of what does (`numbers_by`)."""


IMPLEMENTATIONS = (
    Implementation("mosaic", mosaic.refusal, mosaic.grouped_tiled_matmul, mosaic.of_weights, recorded=True),
    Implementation("xla", lambda request: None, reference.grouped_tiled_matmul, reference.of_weights, by_numbers=True),
)
"""In order of preference; `xla` is the plain JAX form, the reference of the other."""


def implementation(name: str) -> Implementation:
    """The entry called `name`."""
    return by_name(IMPLEMENTATIONS, name)


def choose(name: str, request: Request, *, named_by: str = "the call names") -> Chosen:
    """See `pallas_kernels.choice.choose`."""
    return choice.choose("a grouped matmul of tiles", name, request, IMPLEMENTATIONS, named_by=named_by)


@cache
def chosen(name: str, request: Request) -> Chosen:
    """`choose`, with a line of the log the first time: as a warning where what was named is not verified."""
    return logged("grouped matmul of tiles", choose(name, request), request)
