"""Implementations of attention, and the choice between them, which states why and why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import jax

from pallas_kernels import choice
from pallas_kernels.attention import cudnn, expected, mosaic, reference, triton
from pallas_kernels.attention.derivative import Kernels
from pallas_kernels.attention.kinds import kind_of
from pallas_kernels.attention.request import Request
from pallas_kernels.attention.settings import Settings, Tokens
from pallas_kernels.choice import UNVERIFIED, Chosen, by_name
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
class Implementation(choice.Implementation):
    """A way to compute attention on one device."""

    operation: ClassVar[str] = "attention"

    kernels: Kernels | None = None
    """None where it attends over whole rows alone, and so cannot be merged."""
    whole: Callable[..., jax.Array] | None = None
    """In place of `kernels`: called like `pallas_kernels.attention.attention`."""
    varies: str | None = None
    """Which of its results are not the same bits in every run, in a clause; None where all are."""

    note: Callable[[Request], str | None] = lambda request: None
    """What else a plan reports of it, in a clause."""

    def attend(self, settings: Settings, q: jax.Array, k: jax.Array, v: jax.Array, tokens: Tokens) -> jax.Array:
        """The output, in q's dtype, differentiable."""
        if self.kernels is not None:
            return self.kernels.attend(settings, q, k, v, tokens)[0]
        assert self.whole is not None, f"{self.name} has neither kernels nor a function"
        options = ("mask", "scale", "softcap", "query_block", "kv_block")
        return self.whole(q, k, v, **{name: getattr(settings, name) for name in options}, **tokens._asdict())


_VARIES = "the gradient of queries is not the same bits in every run"


def _fused(request: Request) -> str | None:
    return _VARIES if request.deterministic else mosaic.refusal(request)


IMPLEMENTATIONS = (
    Implementation("mosaic", _fused, mosaic.KERNELS, recorded=True, varies=_VARIES),
    Implementation("mosaic_deterministic", mosaic.refusal, mosaic.DETERMINISTIC_KERNELS, recorded=True),
    Implementation("triton", triton.refusal, triton.KERNELS, recorded=True),
    Implementation("cudnn", cudnn.supports, whole=cudnn.attend, varies=cudnn.VARIES, note=expected.note_on_packed),
    Implementation("xla", lambda request: None, reference.KERNELS, note=expected.note_on_plain),
)  # fmt: skip
"""`xla` is the plain JAX form: every mask, dtype and platform, and the reference of the others. `mosaic` adds up the
gradient of queries in an order of chance, `mosaic_deterministic` is the same with a kernel more and without that."""

FAMILIES = {"flash": ("mosaic", "mosaic_deterministic", "triton")}
"""Names for several implementations: our kernels."""


def names() -> tuple[str, ...]:
    """All that can be asked for."""
    return ("auto", *FAMILIES, *(entry.name for entry in IMPLEMENTATIONS))


def implementation(name: str) -> Implementation:
    """The entry called `name`."""
    return by_name(IMPLEMENTATIONS, name)


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
    order, why_first = preferred(request)
    entries = sorted(IMPLEMENTATIONS, key=lambda entry: order.index(entry.name))
    options = {"families": FAMILIES, "why_first": why_first, "named_by": named_by}
    found = choice.choose("attention", name, request, entries, **options)
    entry = implementation(found.name)
    clauses = [clause for clause in (entry.note(request), entry.varies) if clause is not None]
    return replace(found, reason="; ".join([found.reason, *clauses]))
