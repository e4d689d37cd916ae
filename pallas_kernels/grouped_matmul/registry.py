"""Implementations of the grouped matmul, what each supports, and which one is taken."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pallas_kernels.grouped_matmul import mosaic, reference
from pallas_kernels.grouped_matmul.request import Request
from pallas_kernels.unsupported import Unsupported
from pallas_kernels.verified import record_of

__all__ = ["IMPLEMENTATIONS", "UNVERIFIED", "Chosen", "Implementation", "Request", "choose", "chosen", "implementation"]

UNVERIFIED = "it has not been verified on such a device"

_LOG = logging.getLogger("pallas_kernels")


@dataclass(frozen=True)
class Implementation:
    """The two functions that differ between implementations (see `reference`)."""

    name: str
    supports: Callable[[Request], str | None]
    """None if it computes what is asked for, else why not: a clause without a full stop."""
    times_weights: Callable[..., Any]
    of_weights: Callable[..., Any]
    recorded: bool = False
    """Whether `auto` waits for a record that it was right on a device (`pallas_kernels.verified`)."""

    def verified(self, request: Request) -> bool:
        """Whether nothing is left to verify on a device like that of the request."""
        if not self.recorded:
            return True
        return record_of(f"grouped_matmul/{self.name}", request.gpu, request.processors) is not None


IMPLEMENTATIONS = (
    Implementation("mosaic", mosaic.refusal, mosaic.times_weights, mosaic.of_weights, recorded=True),
    Implementation("xla", lambda request: None, reference.times_weights, reference.of_weights),
)
"""In order of preference; `xla` is the plain JAX form, the reference of the other."""


@dataclass(frozen=True)
class Chosen:
    """An implementation, and why not another."""

    name: str
    reason: str
    rejected: dict[str, str] = field(default_factory=dict)
    verified: bool = True
    """False where it was named though no record states that it was right on such a device."""


def implementation(name: str) -> Implementation:
    """The entry called `name`."""
    (entry,) = (entry for entry in IMPLEMENTATIONS if entry.name == name)
    return entry


def choose(name: str, request: Request) -> Chosen:
    """The implementation called `name`; for `auto` the first that supports the request and is verified.

    Raises:
        Unsupported: If what is named does not support the request.
        ValueError: If there is no such implementation.
    """
    known = ("auto", *(entry.name for entry in IMPLEMENTATIONS))
    if name not in known:
        raise ValueError(f"a grouped matmul has no implementation {name!r}; expected one of {', '.join(known)}")
    refused = {entry.name: reason for entry in IMPLEMENTATIONS if (reason := entry.supports(request)) is not None}
    if name in refused:
        raise Unsupported("a grouped matmul", name, request, {name: refused[name]})
    if name != "auto":
        entry = implementation(name)
        verified = entry.verified(request)
        reason = f"{name} was named" + ("" if verified else f", though {UNVERIFIED}")
        others = (other.name for other in IMPLEMENTATIONS if other is not entry)
        return Chosen(name, reason, {other: refused.get(other, f"{name} was named") for other in others}, verified)
    for entry in IMPLEMENTATIONS:
        if entry.name not in refused and not entry.verified(request):
            refused[entry.name] = UNVERIFIED
    first = next(entry.name for entry in IMPLEMENTATIONS if entry.name not in refused)
    others = (entry.name for entry in IMPLEMENTATIONS if entry.name != first)
    rejected = {other: refused.get(other, f"{first} is preferred") for other in others}
    return Chosen(first, "the first in order of preference that supports this", rejected)


@cache
def chosen(name: str, request: Request) -> Chosen:
    """`choose`, with a line of the log the first time: as a warning where what was named is not verified."""
    found = choose(name, request)
    level = logging.INFO if found.verified else logging.WARNING
    _LOG.log(level, "grouped matmul by %s (%s) for %s", found.name, found.reason, request)
    return found
