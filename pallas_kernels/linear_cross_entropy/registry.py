"""Implementations of the head's loss, what each supports, and which one is taken."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pallas_kernels.linear_cross_entropy import reference, triton
from pallas_kernels.unsupported import Unsupported
from pallas_kernels.verified import record_of

KERNEL = "linear_cross_entropy"
"""Its name in the record of kernels that were right on a device, before a slash and the implementation's."""

UNVERIFIED = "it has not been verified on such a device"

_LOG = logging.getLogger("pallas_kernels")
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
class Implementation:
    """The two functions that differ between implementations (see `reference`)."""

    name: str
    supports: Callable[[Request], str | None]
    """None if it computes what is asked for, else why not: a clause without a full stop."""
    statistics: Callable[..., Any]
    logit_gradients: Callable[..., Any]
    multiple: int = 1
    """Columns of a chunk of the backward are a multiple of this."""
    recorded: bool = False
    """Whether `auto` waits for a record that it was right on a device (`pallas_kernels.verified`)."""

    def verified(self, request: Request) -> bool:
        """Whether nothing is left to verify on a device like that of the request."""
        return not self.recorded or record_of(f"{KERNEL}/{self.name}", request.gpu, request.processors) is not None


def _triton_supports(request: Request) -> str | None:
    if request.platform not in ("gpu", "interpreter"):
        return f"it runs on GPUs, not on a {request.platform}"
    if request.dtype not in ("bfloat16", "float16"):
        return f"its matmuls are of bfloat16 or float16, not {request.dtype}"
    if max(request.tokens, request.columns) * request.embed >= _INDEXED:
        return (
            f"x of {request.tokens} x {request.embed} or a table of {request.embed} x {request.columns} has 2^31 "
            "elements or more, which its indices do not reach"
        )
    if request.platform == "gpu" and (request.compute_capability or 0.0) < 8.0:
        return f"it needs compute capability 8.0, and this device has {request.compute_capability or 'none'}"
    return None


IMPLEMENTATIONS = (
    Implementation(
        "triton", _triton_supports, triton.statistics, triton.logit_gradients, multiple=triton.WIDEST, recorded=True
    ),
    Implementation("xla", lambda request: None, reference.statistics, reference.logit_gradients),
)
"""In order of preference; `xla` is the plain JAX form, the reference of the other."""


def implementation(name: str) -> Implementation:
    """The entry called `name`."""
    (entry,) = (entry for entry in IMPLEMENTATIONS if entry.name == name)
    return entry


@dataclass(frozen=True)
class Chosen:
    """An implementation, and why not another."""

    name: str
    reason: str
    rejected: dict[str, str] = field(default_factory=dict)
    verified: bool = True
    """False where it was named though no record states that it was right on such a device."""


def choose(name: str, request: Request) -> Chosen:
    """The implementation called `name`; for `auto` the first that supports the request and is verified.

    Raises:
        Unsupported: If what is named does not support the request.
        ValueError: If there is no such implementation.
    """
    known = ("auto", *(entry.name for entry in IMPLEMENTATIONS))
    if name not in known:
        raise ValueError(f"linear cross-entropy has no implementation {name!r}; expected one of {', '.join(known)}")
    refused = {entry.name: reason for entry in IMPLEMENTATIONS if (reason := entry.supports(request)) is not None}
    if name in refused:
        raise Unsupported("linear cross-entropy", name, request, {name: refused[name]})
    if name == "auto":
        refused |= {
            entry.name: UNVERIFIED
            for entry in IMPLEMENTATIONS
            if entry.name not in refused and not entry.verified(request)
        }
        chosen = next(entry for entry in IMPLEMENTATIONS if entry.name not in refused)
        reason = "the first in order of preference that supports this"
    else:
        chosen, reason = implementation(name), f"{name} was named"
    verified = chosen.verified(request)
    reason += "" if verified else f", though {UNVERIFIED}"
    others = [entry.name for entry in IMPLEMENTATIONS if entry is not chosen]
    rejected = {
        other: refused.get(other, f"{chosen.name} is preferred" if name == "auto" else reason) for other in others
    }
    return Chosen(chosen.name, reason, rejected, verified)


@cache
def chosen(name: str, request: Request) -> Chosen:
    """`choose`, with a line of the log the first time: as a warning where what was named is not verified."""
    found = choose(name, request)
    level = logging.INFO if found.verified else logging.WARNING
    _LOG.log(level, "linear cross-entropy by %s (%s) for %s", found.name, found.reason, request)
    return found
