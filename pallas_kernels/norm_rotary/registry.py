"""Implementations of the norm with rotary embedding, what each supports, and which one is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from pallas_kernels import choice
from pallas_kernels.choice import Chosen, by_name, logged, refused_by_gpu
from pallas_kernels.norm_rotary import reference, triton

_INDEXED = 2**31
"""Elements of an array that the kernels' indices reach."""
_WIDEST = 512
"""Of a head: a program has the dims of whole heads in registers."""


@dataclass(frozen=True)
class Request:
    """What a choice may rest on."""

    platform: str
    """`gpu` or `cpu`, or `interpreter` where Pallas' interpreter runs the kernels."""
    dtype: str
    tokens: int
    heads: int
    head_dim: int
    compute_capability: float | None = None
    """Of the GPU (9.0 is Hopper); None where there is none."""
    gpu: str = ""
    """Name of the GPU, as `jax.Device.device_kind` has it."""
    processors: int | None = None
    """Streaming multiprocessors of the GPU."""

    def __str__(self) -> str:
        on = self.platform if self.compute_capability is None else f"{self.platform} {self.compute_capability:.1f}"
        return f"{self.tokens} x {self.heads} heads of {self.head_dim} in {self.dtype} on {on}"


@dataclass(frozen=True)
class Implementation(choice.Implementation):
    """The two functions that differ between implementations (see `reference`)."""

    operation: ClassVar[str] = "norm_rotary"

    forward: Callable[..., Any]
    backward: Callable[..., Any]


def _triton_supports(request: Request) -> str | None:
    dtypes = ("bfloat16", "float16", "float32")
    if (reason := refused_by_gpu(request, hopper=False, dtypes=dtypes)) is not None:
        return reason
    if request.head_dim % 16 or not 32 <= request.head_dim <= _WIDEST:
        return f"heads are 32 to {_WIDEST} wide, a multiple of 16, not {request.head_dim}"
    if request.tokens * request.heads * request.head_dim >= _INDEXED:
        return (
            f"{request.tokens} x {request.heads} heads of {request.head_dim} have 2^31 elements or more, which its "
            "indices do not reach"
        )
    return None


IMPLEMENTATIONS = (
    Implementation("triton", _triton_supports, triton.forward, triton.backward, recorded=True),
    Implementation("xla", lambda request: None, reference.forward, reference.backward),
)
"""In order of preference; `xla` is the plain JAX form, the reference of the other."""


def implementation(name: str) -> Implementation:
    """The entry called `name`."""
    return by_name(IMPLEMENTATIONS, name)


def choose(name: str, request: Request, *, named_by: str = "the call names") -> Chosen:
    """See `pallas_kernels.choice.choose`."""
    return choice.choose("norm with rotary embedding", name, request, IMPLEMENTATIONS, named_by=named_by)


@cache
def chosen(name: str, request: Request) -> Chosen:
    """`choose`, with a line of the log the first time: as a warning where what was named is not verified."""
    return logged("norm with rotary embedding", choose(name, request), request)
