"""The choice between implementations of an operation: which one runs, why, and why not another."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from pallas_kernels.unsupported import Unsupported, clauses
from pallas_kernels.verified import record_of

UNVERIFIED = "it has not been verified on such a device"
FIRST = "the first in order of preference that supports this"

_LOG = logging.getLogger("pallas_kernels")


class OnDevice(Protocol):
    """What every request states: the device, and the dtype of the operands."""

    @property
    def platform(self) -> str:
        """`gpu` or `cpu`, or `interpreter` where Pallas' interpreter runs the kernels."""
        ...

    @property
    def dtype(self) -> str: ...

    @property
    def compute_capability(self) -> float | None:
        """Of the GPU (9.0 is Hopper); None where there is none."""
        ...

    @property
    def gpu(self) -> str:
        """Name of the GPU, as `jax.Device.device_kind` has it."""
        ...

    @property
    def processors(self) -> int | None:
        """Streaming multiprocessors of the GPU."""
        ...


@dataclass(frozen=True)
class Implementation:
    """A way to compute an operation on one device."""

    operation: ClassVar[str]
    """Its name in the records of kernels that were right on a device, before a slash and the implementation's."""

    name: str
    supports: Callable[[Any], str | None]
    """None if it computes what a request asks for, else why not: a clause without a full stop."""
    recorded: bool = field(default=False, kw_only=True)
    """Whether `auto` waits for a record that it was right on a device (`pallas_kernels.verified`)."""

    def verified(self, request: OnDevice) -> bool:
        """Whether nothing is left to verify on a device like that of the request."""
        if not self.recorded:
            return True
        return record_of(f"{self.operation}/{self.name}", request.gpu, request.processors) is not None


@dataclass(frozen=True)
class Chosen:
    """An implementation, and why not another."""

    name: str
    reason: str
    rejected: dict[str, str] = field(default_factory=dict)
    verified: bool = True
    """False where it was named though no record states that it was right on such a device."""


def by_name[Entry: Implementation](entries: Sequence[Entry], name: str) -> Entry:
    """The entry called `name`."""
    (found,) = (entry for entry in entries if entry.name == name)
    return found


def choose(
    what: str,
    name: str,
    request: OnDevice,
    entries: Sequence[Implementation],
    *,
    families: Mapping[str, tuple[str, ...]] | None = None,
    why_first: str = FIRST,
    named_by: str = "the call names",
) -> Chosen:
    """The implementation called `name`; for `auto` the first that supports the request and is verified, for a family
    the first that supports it, verified ones before others.

    Args:
        what: the operation in messages, such as `a grouped matmul`.
        name: of an implementation or a family, or `auto`.
        request: what is asked for.
        entries: in order of preference.
        families: names for several implementations.
        why_first: the reason of the first in order of preference.
        named_by: how a reason states that an implementation was named.

    Raises:
        Unsupported: If what is named does not support the request.
        ValueError: If there is no such name.
    """
    families = families or {}
    known = ("auto", *families, *(entry.name for entry in entries))
    if name not in known:
        raise ValueError(f"{what} has no implementation {name!r}; expected one of {', '.join(known)}")
    refused = {entry.name: reason for entry in entries if (reason := entry.supports(request)) is not None}
    allowed, named = list(entries), ""
    if name == "auto":
        open_ones = [entry for entry in entries if entry.name not in refused]
        refused |= {entry.name: UNVERIFIED for entry in open_ones if not entry.verified(request)}
    else:
        among = families.get(name, (name,))
        allowed, named = [entry for entry in entries if entry.name in among], f"{named_by} {name}"
        allowed.sort(key=lambda entry: not entry.verified(request))
    found = next((entry for entry in allowed if entry.name not in refused), None)
    if found is None:
        raise Unsupported(what, name, request, {entry.name: refused[entry.name] for entry in allowed})
    others = [entry.name for entry in entries if entry is not found]
    rejected = {other: refused.get(other, named or f"{found.name} is preferred") for other in others}
    reason = named or (why_first if found is entries[0] else FIRST)
    verified = found.verified(request)
    return Chosen(found.name, reason + ("" if verified else f", though {UNVERIFIED}"), rejected, verified)


def logged(what: str, chosen: Chosen, request: OnDevice) -> Chosen:
    """`chosen`, with a line of the log: a warning where what was named is not verified."""
    level = logging.INFO if chosen.verified else logging.WARNING
    _LOG.log(level, "%s by %s (%s) for %s; not %s", what, chosen.name, chosen.reason, request, clauses(chosen.rejected))
    return chosen


def refused_by_gpu(request: OnDevice, *, hopper: bool, dtypes: tuple[str, ...] = ("bfloat16", "float16")) -> str | None:
    """Why kernels for tensor cores do not run where a request is from, or not in its dtype; None where they do.

    `hopper` is of kernels that use what only Hopper has; others run on Ampere and later.
    """
    capability = request.compute_capability
    if request.platform not in ("gpu", "interpreter"):
        return f"it needs an NVIDIA GPU, and the platform is {request.platform}"
    if request.platform == "gpu" and hopper and capability != 9.0:
        return f"it needs compute capability 9.0 (Hopper), and the GPU has {capability or 'none'}"
    if request.platform == "gpu" and (capability or 0.0) < 8.0:
        return f"it needs compute capability 8.0 (Ampere), and the GPU has {capability or 'none'}"
    if request.dtype not in dtypes:
        return f"it computes in {' or '.join(dtypes)}, not {request.dtype}"
    return None
