"""The choice between implementations of an operation: which one runs, why, and why not another."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from pallas_kernels.verified import OF_XLA, record_of

UNVERIFIED = "it has not been verified on such a device"
FIRST = "the first in order of preference that supports this"

_LOG = logging.getLogger("pallas_kernels")


class Unsupported(ValueError):
    """Says what was named, what was asked for, and why each implementation refused.

    Args:
        what: such as `attention`.
        name: the implementation or family that was named.
        request: what was asked for; its `str` goes into the message.
        refused: a reason by implementation.
    """

    def __init__(self, what: str, name: str, request: object, refused: Mapping[str, str]):
        self.refused = dict(refused)
        super().__init__(f"{what} by {name!r} does not support {request}: {clauses(refused)}")


def clauses(refused: Mapping[str, str]) -> str:
    """Reasons in one line."""
    return "; ".join(f"{name}: {reason}" for name, reason in refused.items())


@dataclass(frozen=True, kw_only=True)
class Request(ABC):
    """A request for an operation on one device: everything on which the choice of an implementation may depend."""

    platform: str
    """`gpu` or `cpu` as `jax.Device.platform` has it, or `interpreter` where Pallas' interpreter runs the kernels."""
    dtype: str
    """Dtype of the operands; of the result if the operands are quantized."""
    compute_capability: float | None = None
    """Compute capability of the GPU (9.0 is Hopper); None without one."""
    gpu: str = ""
    """Name of the GPU, as `jax.Device.device_kind` has it."""
    processors: int | None = None
    """Streaming multiprocessors of the GPU."""

    @property
    @abstractmethod
    def elements(self) -> int:
        """Number of elements of the largest array."""

    @property
    def device_text(self) -> str:
        """The platform and its compute capability, for messages."""
        return self.platform if self.compute_capability is None else f"{self.platform} {self.compute_capability:.1f}"


@dataclass(frozen=True)
class Implementation:
    """A way to compute an operation on one device."""

    name: str
    supports: Callable[[Any], str | None]
    """Function that returns None if a request is supported, otherwise the reason: a clause without a full stop."""
    recorded: bool = field(default=False, kw_only=True)
    """Whether `auto` waits for a record that it was right on a device (`pallas_kernels.verified`)."""

    def remarks(self, request: Any) -> Sequence[str]:
        """Further clauses of the reason given for choosing it."""
        return ()


@dataclass(frozen=True)
class Chosen:
    """An implementation, and why not another."""

    name: str
    reason: str
    rejected: dict[str, str] = field(default_factory=dict)
    verified: bool = True
    """False where it was named though no record states that it was right on such a device."""


@dataclass(frozen=True, eq=False)
class Registry[Entry: Implementation]:
    """The implementations of an operation, and the choice between them, which states why and why not."""

    operation: str
    """Name in the records of verified kernels, before a slash and the implementation's name."""
    what: str
    """The operation in messages, such as `a grouped matmul`."""
    entries: tuple[Entry, ...]
    """Implementations in order of preference."""
    families: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names for several implementations."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the implementations that can be requested."""
        return ("auto", *self.families, *(entry.name for entry in self.entries))

    def __getitem__(self, name: str) -> Entry:
        (implementation,) = (entry for entry in self.entries if entry.name == name)
        return implementation

    def ranked(self, request: Any) -> tuple[Sequence[str], str]:
        """Names in the order of preference for a request, and why the first of them is the first."""
        return [entry.name for entry in self.entries], FIRST

    def kernel(self, name: str, request: Any) -> str:
        """The name of an implementation in the records of verified kernels, for a request."""
        return f"{self.operation}/{name}"

    def verified(self, entry: Entry, request: Request) -> bool:
        """Whether nothing is left to verify of an implementation on a device like that of the request."""
        if not entry.recorded:
            return True
        return record_of(self.kernel(entry.name, request), request.gpu, request.processors) is not None

    def slower(self, entry: Entry, request: Request) -> str | None:
        """A clause if an implementation was slower than plain XLA on such a device; None if it was faster or not
        timed."""
        kernel = self.kernel(entry.name, request)
        record = record_of(kernel, request.gpu, request.processors) if entry.recorded else None
        share = None if record is None else dict(record.speeds).get(OF_XLA)
        return None if share is None or share >= 1.0 else f"it had {share:.2f} of plain XLA's speed on such a device"

    def choose(self, name: str, request: Request, *, named_by: str = "the call names") -> Chosen:
        """The implementation called `name`; for `auto` the first that supports the request, is verified and was not
        slower than plain XLA, for a family the first that supports it, verified ones before others.

        Args:
            name: of an implementation or a family, or `auto`.
            request: what is asked for.
            named_by: how a reason states that an implementation was named.

        Raises:
            Unsupported: If what is named does not support the request.
            ValueError: If there is no such name.
        """
        order, why_first = self.ranked(request)
        entries = [self[other] for other in order]
        known = ("auto", *self.families, *order)
        if name not in known:
            raise ValueError(f"{self.what} has no implementation {name!r}; expected one of {', '.join(known)}")
        refused = {entry.name: reason for entry in entries if (reason := entry.supports(request)) is not None}
        allowed, named = entries, ""
        if name == "auto":
            open_ones = [entry for entry in entries if entry.name not in refused]
            refused |= {entry.name: UNVERIFIED for entry in open_ones if not self.verified(entry, request)}
            refused |= {entry.name: why for entry in open_ones if (why := self.slower(entry, request)) is not None}
        else:
            among = self.families.get(name, (name,))
            allowed, named = [entry for entry in entries if entry.name in among], f"{named_by} {name}"
            allowed.sort(key=lambda entry: not self.verified(entry, request))
        implementation = next((entry for entry in allowed if entry.name not in refused), None)
        if implementation is None:
            raise Unsupported(self.what, name, request, {entry.name: refused[entry.name] for entry in allowed})
        others = [other for other in order if other != implementation.name]
        rejected = {other: refused.get(other, named or f"{implementation.name} is preferred") for other in others}
        reason, verified = (
            named or (why_first if implementation is entries[0] else FIRST),
            self.verified(implementation, request),
        )
        reason += "" if verified else f", though {UNVERIFIED}"
        return Chosen(implementation.name, "; ".join((reason, *implementation.remarks(request))), rejected, verified)

    @cached_property
    def chosen(self) -> Callable[[str, Request], Chosen]:
        """`choose`, with a line of the log the first time: a warning where what was named is not verified."""
        return cache(self._logged)

    def _logged(self, name: str, request: Request) -> Chosen:
        chosen = self.choose(name, request)
        level = logging.INFO if chosen.verified else logging.WARNING
        what, others = self.what.removeprefix("a "), clauses(chosen.rejected)
        _LOG.log(level, "%s by %s (%s) for %s; not %s", what, chosen.name, chosen.reason, request, others)
        return chosen


NEEDS_GPU = "it needs an NVIDIA GPU"
"""Beginning of a reason that is about the platform alone."""


HOPPER, BLACKWELL, AMPERE = 9.0, 10.0, 8.0
"""Compute capabilities: of H100s, of B200s, and the first with tensor cores for bfloat16."""
_NAMES = {HOPPER: "Hopper", BLACKWELL: "Blackwell"}


def refused_by_gpu(
    request: Request, *, only: tuple[float, ...] = (), dtypes: tuple[str, ...] = ("bfloat16", "float16")
) -> str | None:
    """Why kernels for tensor cores do not run where a request is from, in its dtype, or with 32-bit offsets; None where
    they do.

    `only` are the compute capabilities of kernels that use what only these have; others run on Ampere and later.
    """
    capability = request.compute_capability
    if request.platform not in ("gpu", "interpreter"):
        return f"{NEEDS_GPU}, and the platform is {request.platform}"
    if request.platform == "gpu" and only and capability not in only:
        needed = " or ".join(f"{one} ({_NAMES[one]})" for one in only)
        return f"it needs compute capability {needed}, and the GPU has {capability or 'none'}"
    if request.platform == "gpu" and (capability or 0.0) < AMPERE:
        return f"it needs compute capability 8.0 (Ampere), and the GPU has {capability or 'none'}"
    if request.dtype not in dtypes:
        return f"it computes in {' or '.join(dtypes)}, not {request.dtype}"
    if request.elements >= 2**31:
        return f"its arrays have at most 2^31 - 1 elements, not {request.elements:,}"
    return None
