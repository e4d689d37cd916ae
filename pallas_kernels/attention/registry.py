"""Implementations of attention, and the choice between them, which states why and why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax

from pallas_kernels import choice
from pallas_kernels.attention import cudnn, mosaic, packed_room, reference, triton
from pallas_kernels.attention.derivative import ForwardBackward
from pallas_kernels.attention.request import Request
from pallas_kernels.attention.settings import MaskInputs, Settings
from pallas_kernels.choice import BLACKWELL, Registry
from pallas_kernels.verified import SOURCES, record_of


@dataclass(frozen=True)
class Implementation(choice.Implementation):
    """A way to compute attention on one device."""

    kernels: ForwardBackward | None = None
    """Kernels whose outputs can be merged; None if it attends over full rows only."""
    function: Callable[..., jax.Array] | None = None
    """A function in place of `kernels`, called like `pallas_kernels.attention.attention`."""
    varies: str | None = None
    """The results that are not reproducible to the bit, in a clause; None if all are."""

    note: Callable[[Request], str | None] = lambda request: None
    """A plan's further note on it, in a clause."""

    def remarks(self, request: Request) -> list[str]:
        return [clause for clause in (self.note(request), self.varies) if clause is not None]

    def attend(self, settings: Settings, q: jax.Array, k: jax.Array, v: jax.Array, tokens: MaskInputs) -> jax.Array:
        """The output, in q's dtype, differentiable."""
        if self.kernels is not None:
            return self.kernels.attend(settings, q, k, v, tokens)[0]
        assert self.function is not None, f"{self.name} has neither kernels nor a function"
        options = ("mask", "scale", "softcap", "query_block", "kv_block")
        return self.function(q, k, v, **{name: getattr(settings, name) for name in options}, **tokens._asdict())


_VARIES = "the gradient of queries is not the same bits in every run"


def _fused(request: Request) -> str | None:
    return _VARIES if request.deterministic else mosaic.refusal(request)


def _through_memory(request: Request) -> str | None:
    """A plan's note on plain XLA with packed documents on a GPU; None elsewhere."""
    slow = request.mask.segmented and request.platform == "gpu"
    return "scores of packed documents pass through memory, which kernels avoid (docs/kernels.md)" if slow else None


@dataclass(frozen=True, eq=False)
class _Ranked(Registry[Implementation]):
    """A registry whose order of preference depends on the mask and on recorded speeds."""

    def ranked(self, request: Request) -> tuple[tuple[str, ...], str]:
        """Published numbers put cuDNN level with or ahead of every open kernel where a mask is dense, on Hopper and
        Ampere (see docs/kernels.md); where a window or documents empty most blocks, ours skip them. On Blackwell ours
        is `triton` alone, behind cuDNN under any mask. Of our two forms for Hopper the one with fewer matmuls is
        preferred; its bits vary, and a request for the same bits in every run excludes it. Where speeds were recorded
        on this GPU for such masks and heads, they decide between those that have one.
        """
        ours = ("mosaic", "mosaic_deterministic", "triton")
        order, why = (*ours, "cudnn", "xla"), "it skips the blocks that windows and documents empty"
        if request.dense or (request.compute_capability or 0.0) >= BLACKWELL:
            order = ("cudnn", *ours, "xla")
            why = "cuDNN is ahead or level where the mask is dense" if request.dense else "cuDNN is ahead on Blackwell"
        speeds = {name: speed for name in order if (speed := self.recorded_speed(name, request)) is not None}
        if len(speeds) < 2:
            return order, why
        ranked = iter(sorted(speeds, key=lambda name: -speeds[name]))
        order = tuple(next(ranked) if name in speeds else name for name in order)
        return order, f"it is the fastest recorded on this GPU ({max(speeds.values()):.0f} TFLOP/s)"

    def recorded_speed(self, name: str, request: Request) -> float | None:
        """TFLOP/s of forward and backward together, as recorded on GPUs like that of the request for its kind of mask
        and width of heads; None where there is no record."""
        kernel = self.kernel(name, request)
        record = record_of(kernel, request.gpu, request.processors) if kernel in SOURCES else None
        return None if record is None else dict(record.speeds).get(f"{request.mask.kind} {request.width}")


REGISTRY = _Ranked(
    "attention",
    "attention",
    (
        Implementation("mosaic", _fused, mosaic.KERNELS, recorded=True, varies=_VARIES),
        Implementation("mosaic_deterministic", mosaic.refusal, mosaic.DETERMINISTIC_KERNELS, recorded=True),
        Implementation("triton", triton.refusal, triton.KERNELS, recorded=True),
        Implementation("cudnn", cudnn.supports, function=cudnn.attend, varies=cudnn.VARIES, note=packed_room.note),
        Implementation("xla", lambda request: None, reference.KERNELS, note=_through_memory),
    ),
    families={"flash": ("mosaic", "mosaic_deterministic", "triton")},
)  # fmt: skip
"""`xla` is the plain JAX form: every mask, dtype and platform, and the reference of the others. `mosaic` adds up the
gradient of queries in an order of chance, `mosaic_deterministic` is the same with a kernel more and without that."""
