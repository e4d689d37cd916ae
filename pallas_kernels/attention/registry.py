"""Implementations of attention, and the choice between them, which states why and why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax

from pallas_kernels.attention import cudnn, mosaic, reference, triton
from pallas_kernels.attention.derivative import Kernels
from pallas_kernels.attention.kinds import kind_of
from pallas_kernels.attention.request import Request
from pallas_kernels.attention.settings import Settings, Tokens
from pallas_kernels.unsupported import Unsupported, clauses
from pallas_kernels.verified import SOURCES, record_of

__all__ = [
    "FAMILIES",
    "IMPLEMENTATIONS",
    "UNVERIFIED",
    "Chosen",
    "Implementation",
    "Unsupported",
    "choose",
    "clauses",
    "implementation",
    "names",
    "preferred",
]


@dataclass(frozen=True)
class Implementation:
    """A way to compute attention on one device."""

    name: str
    supports: Callable[[Request], str | None]
    """None if it computes what is asked for, else why not: a clause without a full stop."""
    kernels: Kernels | None = None
    """None where it attends over whole rows alone, and so cannot be merged."""
    whole: Callable[..., jax.Array] | None = None
    """In place of `kernels`: called like `pallas_kernels.attention.attention`."""
    recorded: bool = False
    """Whether `auto` waits for a record that it was right on a device (`pallas_kernels.verified`)."""
    varies: str | None = None
    """Which of its results are not the same bits in every run, in a clause; None where all are."""

    def attend(self, settings: Settings, q: jax.Array, k: jax.Array, v: jax.Array, tokens: Tokens) -> jax.Array:
        """The output, in q's dtype, differentiable."""
        if self.kernels is not None:
            return self.kernels.attend(settings, q, k, v, tokens)[0]
        assert self.whole is not None, f"{self.name} has neither kernels nor a function"
        options = ("mask", "scale", "softcap", "query_block", "kv_block")
        return self.whole(q, k, v, **{name: getattr(settings, name) for name in options}, **tokens._asdict())

    def verified(self, request: Request) -> bool:
        """Whether nothing is left to verify on a device like that of the request."""
        if not self.recorded:
            return True
        return record_of(f"attention/{self.name}", request.gpu, request.processors) is not None


_VARIES = "the gradient of queries is not the same bits in every run"


def _fused(request: Request) -> str | None:
    return _VARIES if request.deterministic else mosaic.refusal(request)


IMPLEMENTATIONS = (
    Implementation("mosaic", _fused, mosaic.KERNELS, recorded=True, varies=_VARIES),
    Implementation("mosaic_deterministic", mosaic.refusal, mosaic.DETERMINISTIC_KERNELS, recorded=True),
    Implementation("triton", triton.refusal, triton.KERNELS, recorded=True),
    Implementation("cudnn", cudnn.supports, whole=cudnn.attend, varies=cudnn.VARIES),
    Implementation("xla", lambda request: None, reference.KERNELS),
)  # fmt: skip
"""`xla` is the plain JAX form: every mask, dtype and platform, and the reference of the others. `mosaic` adds up the
gradient of queries in an order of chance, `mosaic_deterministic` is the same with a kernel more and without that."""

FAMILIES = {"flash": ("mosaic", "mosaic_deterministic", "triton")}
"""Names for several implementations: our kernels."""

UNVERIFIED = "it has not been verified on such a device"


@dataclass(frozen=True)
class Chosen:
    """An implementation, and why not another."""

    name: str
    reason: str
    rejected: dict[str, str] = field(default_factory=dict)
    verified: bool = True
    """False where it was named though no record states that it was right on such a device."""


def names() -> tuple[str, ...]:
    """All that can be asked for."""
    return ("auto", *FAMILIES, *(entry.name for entry in IMPLEMENTATIONS))


def implementation(name: str) -> Implementation:
    """The entry called `name`."""
    (entry,) = (entry for entry in IMPLEMENTATIONS if entry.name == name)
    return entry


def preferred(request: Request) -> tuple[tuple[str, ...], str]:
    """Names in order of preference, and why the first of them is the first.

    Published numbers put cuDNN level with or ahead of every open kernel where a mask is dense, on Hopper and Ampere
    (see docs/kernels.md); where a window or documents empty most blocks, ours skip them. Of our two forms for Hopper
    the one with fewer matmuls is preferred; its bits vary, and a request for the same bits in every run excludes it.
    Where speeds were recorded on this GPU for such masks and heads, they decide between those that have one.
    """
    ours = ("mosaic", "mosaic_deterministic", "triton")
    order, why = (*ours, "cudnn", "xla"), "it skips the blocks that windows and documents empty"
    if request.dense:
        order, why = ("cudnn", *ours, "xla"), "cuDNN is ahead or level where the mask is dense"
    speeds = {name: speed for name in order if (speed := recorded_speed(name, request)) is not None}
    if len(speeds) < 2:
        return order, why
    ranked = iter(sorted(speeds, key=lambda name: -speeds[name]))
    order = tuple(next(ranked) if name in speeds else name for name in order)
    return order, f"it is the fastest recorded on this GPU ({max(speeds.values()):.0f} TFLOP/s)"


def recorded_speed(name: str, request: Request) -> float | None:
    """TFLOP/s of forward and backward together, as recorded on GPUs like that of the request for its kind of mask and
    width of heads; None where there is no record."""
    found = record_of(f"attention/{name}", request.gpu, request.processors) if f"attention/{name}" in SOURCES else None
    return None if found is None else dict(found.speeds).get(f"{kind_of(request.mask)} {request.width}")


def choose(name: str, request: Request, *, named_by: str = "the call names") -> Chosen:
    """The implementation called `name`; for `auto` and for a family the first in order of preference. `named_by` is how
    a reason states that it was named.

    Raises:
        Unsupported: If what is named does not compute what is asked for.
        ValueError: If there is no such name.
    """
    if name not in names():
        raise ValueError(f"attention has no implementation {name!r}; expected one of {', '.join(names())}")
    order, why_first = preferred(request)
    entries = sorted(IMPLEMENTATIONS, key=lambda entry: order.index(entry.name))
    reasons = {entry.name: entry.supports(request) for entry in entries}
    refused = {other: reason for other, reason in reasons.items() if reason is not None}
    if name == "auto":
        refused |= {
            entry.name: UNVERIFIED for entry in entries if entry.name not in refused and not entry.verified(request)
        }
        allowed, named = entries, ""
    else:
        among = FAMILIES.get(name, (name,))
        allowed, named = [entry for entry in entries if entry.name in among], f"{named_by} {name}"
        allowed.sort(key=lambda entry: not entry.verified(request))
    found = [entry for entry in allowed if entry.name not in refused]
    if not found:
        raise Unsupported("attention", name, request, {entry.name: refused[entry.name] for entry in allowed})
    chosen = found[0]
    others = [entry.name for entry in entries if entry is not chosen]
    rejected = {other: refused.get(other, named or f"{chosen.name} is preferred") for other in others}
    first = "the first in order of preference that supports this"
    reason = named or (why_first if chosen.name == order[0] else first)
    if not chosen.verified(request):
        reason += f", though {UNVERIFIED}"
    reason += "" if chosen.varies is None else f"; {chosen.varies}"
    return Chosen(chosen.name, reason, rejected, chosen.verified(request))
