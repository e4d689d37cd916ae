"""Implementations of the grouped matmul, what each supports, and which one is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from pallas_kernels import choice
from pallas_kernels.choice import UNVERIFIED, Chosen, by_name, logged
from pallas_kernels.grouped_matmul import mosaic, reference, triton
from pallas_kernels.grouped_matmul.request import Request

__all__ = ["IMPLEMENTATIONS", "UNVERIFIED", "Chosen", "Implementation", "Request", "choose", "chosen", "implementation"]


@dataclass(frozen=True)
class Implementation(choice.Implementation):
    """The two functions that differ between implementations (see `reference`)."""

    operation: ClassVar[str] = "grouped_matmul"

    times_weights: Callable[..., Any]
    of_weights: Callable[..., Any]
    gated: Callable[..., Any] | None = None
    """Both products of a gated feed-forward and its hidden activation in one kernel; None where there is none."""


IMPLEMENTATIONS = (
    Implementation("mosaic", mosaic.refusal, mosaic.times_weights, mosaic.of_weights, mosaic.gated, recorded=True),
    Implementation("triton", triton.refusal, triton.times_weights, triton.of_weights, triton.gated, recorded=True),
    Implementation("xla", lambda request: None, reference.times_weights, reference.of_weights),
)
"""In order of preference; `xla` is the plain JAX form, the reference of the others."""


def implementation(name: str) -> Implementation:
    """The entry called `name`."""
    return by_name(IMPLEMENTATIONS, name)


def choose(name: str, request: Request, *, named_by: str = "the call names") -> Chosen:
    """See `pallas_kernels.choice.choose`."""
    return choice.choose("a grouped matmul", name, request, IMPLEMENTATIONS, named_by=named_by)


@cache
def chosen(name: str, request: Request) -> Chosen:
    """`choose`, with a line of the log the first time: as a warning where what was named is not verified."""
    return logged("grouped matmul", choose(name, request), request)
