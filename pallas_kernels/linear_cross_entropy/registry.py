"""Implementations of the head's loss, what each supports, and which one is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

from pallas_kernels import choice
from pallas_kernels.choice import Chosen, by_name, logged, refused_by_gpu
from pallas_kernels.linear_cross_entropy import kept, reference, triton

_INDEXED = 2**31
"""Elements of an array that the kernels' indices reach."""


@dataclass(frozen=True)
class Request:
    """What a choice may rest on."""

    platform: str
    """`gpu` or `cpu`, or `interpreter` where Pallas' interpreter runs the kernels."""
    dtype: str
    """Of x and the table."""
    tokens: int
    embed: int
    columns: int
    """Of the table, on this device."""
    compute_capability: float | None = None
    """Of the GPU (9.0 is Hopper); None where there is none."""
    gpu: str = ""
    """Name of the GPU, as `jax.Device.device_kind` has it."""
    processors: int | None = None
    """Streaming multiprocessors of the GPU."""

    def __str__(self) -> str:
        on = self.platform if self.compute_capability is None else f"{self.platform} {self.compute_capability:.1f}"
        return f"{self.tokens} x {self.embed} by {self.columns} columns in {self.dtype} on {on}"


@dataclass(frozen=True)
class Implementation(choice.Implementation):
    """The functions that differ between implementations (see `reference`, and `kept` for the last)."""

    operation: ClassVar[str] = "linear_cross_entropy"

    statistics: Callable[..., Any]
    logit_gradients: Callable[..., Any]
    kept_gradients: Callable[..., Any]
    multiple: int = field(default=1, kw_only=True)
    """Columns of a chunk of the backward are a multiple of this."""


def _triton_supports(request: Request) -> str | None:
    if (reason := refused_by_gpu(request, hopper=False)) is not None:
        return reason
    if max(request.tokens, request.columns) * request.embed >= _INDEXED:
        return (
            f"x of {request.tokens} x {request.embed} or a table of {request.embed} x {request.columns} has 2^31 "
            "elements or more, which its indices do not reach"
        )
    return None


IMPLEMENTATIONS = (
    Implementation(
        "triton",
        _triton_supports,
        triton.statistics,
        triton.logit_gradients,
        triton.kept_gradients,
        multiple=triton.WIDEST,
        recorded=True,
    ),
    Implementation("xla", lambda request: None, reference.statistics, reference.logit_gradients, kept.kept_gradients),
)
"""In order of preference; `xla` is the plain JAX form, the reference of the other."""


def implementation(name: str) -> Implementation:
    """The entry called `name`."""
    return by_name(IMPLEMENTATIONS, name)


def choose(name: str, request: Request, *, named_by: str = "the call names") -> Chosen:
    """See `pallas_kernels.choice.choose`."""
    return choice.choose("linear cross-entropy", name, request, IMPLEMENTATIONS, named_by=named_by)


@cache
def chosen(name: str, request: Request) -> Chosen:
    """`choose`, with a line of the log the first time: as a warning where what was named is not verified."""
    return logged("linear cross-entropy", choose(name, request), request)
