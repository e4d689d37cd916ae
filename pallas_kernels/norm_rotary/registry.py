"""Implementations of the norm with rotary embedding, what each supports, and which one is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pallas_kernels import choice
from pallas_kernels.choice import INDEXED, Registry, refused_by_gpu
from pallas_kernels.norm_rotary import reference, triton

_WIDEST = 512
"""Of a head: a program has the dims of whole heads in registers."""


@dataclass(frozen=True)
class Request(choice.Request):
    """What a choice may rest on."""

    tokens: int
    heads: int
    head_dim: int

    def __str__(self) -> str:
        return f"{self.tokens} x {self.heads} heads of {self.head_dim} in {self.dtype} on {self.place}"


@dataclass(frozen=True)
class Implementation(choice.Implementation):
    """The two functions that differ between implementations (see `reference`)."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]


def _triton_supports(request: Request) -> str | None:
    dtypes = ("bfloat16", "float16", "float32")
    if (reason := refused_by_gpu(request, hopper=False, dtypes=dtypes)) is not None:
        return reason
    if request.head_dim % 16 or not 32 <= request.head_dim <= _WIDEST:
        return f"heads are 32 to {_WIDEST} wide, a multiple of 16, not {request.head_dim}"
    if request.tokens * request.heads * request.head_dim >= INDEXED:
        return (
            f"{request.tokens} x {request.heads} heads of {request.head_dim} have 2^31 elements or more, which its "
            "indices do not reach"
        )
    return None


REGISTRY = Registry(
    "norm_rotary",
    "norm with rotary embedding",
    (
        Implementation("triton", _triton_supports, triton.forward, triton.backward, recorded=True),
        Implementation("xla", lambda request: None, reference.forward, reference.backward),
    ),
)
"""`xla` is the plain JAX form, the reference of the other."""
