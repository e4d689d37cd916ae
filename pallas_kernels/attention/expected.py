"""Times of attention over packed documents that plans report before any was measured (docs/kernels.md)."""

from __future__ import annotations

from dataclasses import replace
from math import exp, lgamma, log, prod, sqrt
from typing import NamedTuple

from pallas_kernels.attention import cudnn
from pallas_kernels.attention.packed_room import Room, Shape
from pallas_kernels.attention.request import Request

MEAN = 1024
"""Tokens of the documents that `Expected` is of, on average; their lengths are exponentially distributed."""
_RATES = 484e12, 380e12
"""FLOP/s of cuDNN's forward and backward on an H100, in rows of 2k tokens and of width 128."""
_MEMORY = 3e12
"""Bytes per second of setting memory to zero and of copies, on an H100."""
_PLAIN_XLA = 15
"""Estimated time of plain XLA as a multiple of the products' time: its scores and sums of every block pass
through memory."""
_TILE = 128
"""Keys that cuDNN computes besides those of a window, which begins inside of a tile."""
_OF_WHAT = f"forward and backward on an H100, with documents of mean {MEAN}, not measured"


class Expected(NamedTuple):
    """Seconds of forward and backward of a layer on an H100: expected, not measured."""

    total: float
    moved: float
    """Share of `total` that clears scratch memory, slices operands and merges results."""
    calls: float
    """Number of backward calls."""

    @classmethod
    def of(cls, shape: Shape, window: int | None = None) -> Expected:
        """The expected time in cuDNN's packed layout."""
        room = Room.of(shape)
        part, parts = room.part(shape), prod(room.parts(shape))
        calls = parts * expected_calls(room.backward, part.batch, shape.queries)
        forward = expected_calls(room.forward, shape.batch, shape.queries) * 3 * shape.query_bytes
        backward = calls * (room.scratch(shape) + 3 * (part.query_bytes + 2 * part.key_bytes))
        divided = 0 if parts == 1 else parts * 2 * (4 * part.query_bytes + 4 * part.key_bytes)
        moved = (forward + backward + divided) / _MEMORY
        return cls(_products(shape, window) + moved, moved, calls)


def plain_xla(shape: Shape, window: int | None = None) -> float:
    """Seconds of forward and backward of a layer on an H100 by plain XLA: expected, not measured."""
    return _PLAIN_XLA * _products(shape, window)


def expected_calls(room: int, rows: int, queries: int) -> float:
    """Average number of calls of `room` documents per row, as the row with the most documents needs.

    Where lengths are exponentially distributed, one more document begins at each token with the same probability.
    """
    more = queries / MEAN
    most = int(more + 12 * sqrt(more)) + 20
    chances = [exp(count * log(more) - more - lgamma(count + 1)) for count in range(most)]
    return sum(1.0 - sum(chances[: calls * room]) ** rows for calls in range(most // room + 1))


def _products(shape: Shape, window: int | None) -> float:
    """Seconds of the products inside of documents and of the window."""
    flops = 4.0 * shape.batch * shape.heads * shape.width * shape.queries * mean_pairs(shape.queries, window)
    return flops / _RATES[0] + 2.5 * flops / _RATES[1]


def mean_pairs(queries: int, window: int | None) -> float:
    """Keys that a query is multiplied with, on average over the row: of those before it in the row, the ones of its
    document and of the window."""
    seen = queries if window is None else min(queries, window + _TILE)
    inside = 1.0 - exp(-seen / MEAN)
    return MEAN * (seen - MEAN * inside + (queries - seen) * inside) / queries


def note_on_packed(request: Request) -> str | None:
    """A plan's note on cuDNN with packed documents; None without packed documents."""
    if not request.mask.segmented:
        return None
    shape = Shape.of(request)
    room = Room.of(shape)
    part = room.part(shape)
    shares = f", which is of {part.batch} of {shape.batch} rows and of {part.heads} of {shape.heads} heads"
    expected, plain = Expected.of(shape, request.mask.window), plain_xla(shape, request.mask.window)
    return (
        f"documents by their offsets, up to {room.forward} of a row in a forward call and {room.backward} in a "
        f"backward call{'' if part == shape else shares}; compared with plain XLA on the device when the run starts; a "
        f"backward call takes {room.scratch(shape) / 2**30:.1f} GiB of scratch memory; a layer is expected to take "
        f"{1e3 * expected.total:.1f} ms with {expected.calls:.1f} backward calls, {1e3 * expected.moved:.1f} ms of "
        f"them to clear that memory and to merge results, and by plain XLA {1e3 * plain:.1f} ms ({_OF_WHAT})"
    )


def note_on_plain(request: Request) -> str | None:
    """A plan's note on plain XLA with packed documents on a GPU; None elsewhere."""
    if not request.mask.segmented or request.platform not in ("gpu", "cuda"):
        return None
    shape, window = Shape.of(request), request.mask.window
    plain = plain_xla(shape, window)
    beside = ""
    if cudnn.supports(replace(request, compares=True)) is None:
        ratio = plain / Expected.of(shape, window).total
        beside = f", {ratio:.0f} times as long as by cuDNN's packed layout"
    return (
        f"scores and sums of every block pass through memory: a layer is expected to take {1e3 * plain:.1f} ms{beside} "
        f"({_OF_WHAT})"
    )
