"""Times of attention over packed documents that plans report before any was measured (docs/kernels.md)."""

from __future__ import annotations

from typing import NamedTuple

from pallas_kernels.attention import cudnn_packed
from pallas_kernels.attention.request import Request

MEAN = 1024
"""Tokens of the documents that `Expected` is of, on average."""
_RATES = 484e12, 380e12
"""FLOP/s of cuDNN's forward and backward on an H100, in rows of 2k tokens and of width 128."""
_CLEARED = 3e12
"""Bytes per second of setting scratch memory to zero, on an H100."""
_PLAIN_XLA = 15
"""How many times as long as these products plain XLA is estimated to take, whose scores and sums of every block pass
through memory."""
_OF_WHAT = f"forward and backward on an H100, with documents of mean {MEAN}, not measured"


class Expected(NamedTuple):
    """Seconds of forward and backward of a layer on an H100: expected, not measured."""

    whole: float
    cleared: float
    """Of `whole`, to clear the scratch memory."""
    plain: float
    """By plain XLA."""

    @classmethod
    def of(cls, batch: int, queries: int, heads: int, width: int) -> Expected:
        """Of documents of `MEAN` tokens on average.

        Where their lengths are exponentially distributed with mean n, each query keeps n pairs.
        """
        pairs = batch * queries * min(MEAN, queries / 2)
        flops = 4.0 * pairs * heads * width
        products = flops / _RATES[0] + 2.5 * flops / _RATES[1]
        cleared = cudnn_packed.scratch_bytes(batch, queries, heads, width) / _CLEARED
        return cls(products + cleared, cleared, _PLAIN_XLA * products)


def note_on_packed(request: Request) -> str | None:
    """What a plan reports of cuDNN on packed documents; None where there are none."""
    if not request.mask.segmented:
        return None
    shape = request.batch, request.queries, request.heads, request.width
    room, scratch = cudnn_packed.documents_per_call(*shape), cudnn_packed.scratch_bytes(*shape)
    whole, cleared, plain = (1e3 * seconds for seconds in Expected.of(*shape))
    return (
        f"documents by their offsets, up to {room} of a row in a call, compared with plain XLA on the device when the "
        f"run starts; its backward takes {scratch / 2**30:.1f} GiB of scratch memory; a layer is expected to take "
        f"{whole:.1f} ms, {cleared:.1f} ms of them to clear that memory, and by plain XLA {plain:.1f} ms ({_OF_WHAT})"
    )


def note_on_plain(request: Request) -> str | None:
    """What a plan reports of plain XLA on packed documents on a GPU; None elsewhere."""
    if not request.mask.segmented or request.platform not in ("gpu", "cuda"):
        return None
    whole, _, plain = Expected.of(request.batch, request.queries, request.heads, request.width)
    return (
        f"scores and sums of every block pass through memory: a layer is expected to take {1e3 * plain:.1f} ms, "
        f"{plain / whole:.0f} times as long as by cuDNN's packed layout ({_OF_WHAT})"
    )
