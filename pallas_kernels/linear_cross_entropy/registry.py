"""Implementations of the head's loss, what each supports, and which one is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pallas_kernels import choice
from pallas_kernels.choice import INDEXED, Registry, refused_by_gpu
from pallas_kernels.linear_cross_entropy import reference, saved_logits, triton


@dataclass(frozen=True)
class Request(choice.Request):
    """A request for the loss: everything on which the choice of an implementation may depend."""

    tokens: int
    embed: int
    columns: int
    """Columns of the table on this device."""

    def __str__(self) -> str:
        return f"{self.tokens} x {self.embed} by {self.columns} columns in {self.dtype} on {self.device_text}"


@dataclass(frozen=True)
class Implementation(choice.Implementation):
    """The functions that differ between implementations (see `reference`, and `kept` for the last)."""

    statistics: Callable[..., Any]
    logit_gradients: Callable[..., Any]
    gradients_from_saved: Callable[..., Any]
    multiple: int = field(default=1, kw_only=True)
    """Columns of a chunk of the backward are a multiple of this."""


def _triton_supports(request: Request) -> str | None:
    if (reason := refused_by_gpu(request, hopper=False)) is not None:
        return reason
    if max(request.tokens, request.columns) * request.embed >= INDEXED:
        return (
            f"x of {request.tokens} x {request.embed} or a table of {request.embed} x {request.columns} has 2^31 "
            "elements or more, which its indices do not reach"
        )
    return None


REGISTRY = Registry(
    "linear_cross_entropy",
    "linear cross-entropy",
    (
        Implementation(
            "triton",
            _triton_supports,
            triton.statistics,
            triton.logit_gradients,
            triton.gradients_from_saved,
            multiple=triton.WIDEST,
            recorded=True,
        ),
        Implementation(
            "xla",
            lambda request: None,
            reference.statistics,
            reference.logit_gradients,
            saved_logits.gradients_from_saved,
        ),
    ),
)
"""`xla` is the plain JAX form, the reference of the other."""
