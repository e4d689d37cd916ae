"""Scratch memory of cuDNN on packed documents, and the number of documents per call that it allows (`cudnn_packed`)."""

from __future__ import annotations

from typing import NamedTuple

from pallas_kernels.attention.request import Request

SCRATCH = 2**30
"""Limit of a call's scratch memory, in bytes."""
FEWEST = 4
"""Least number of documents of a row in a call: with fewer there would be too many calls."""
_SHORT = 256
"""Tokens. A call takes at most the number of documents of this length in a row, or `FEWEST`."""


class Shape(NamedTuple):
    """Shape of the queries, and the number of heads of keys and values."""

    batch: int
    queries: int
    heads: int
    kv_heads: int
    width: int

    @classmethod
    def of(cls, request: Request) -> Shape:
        return cls(request.batch, request.queries, request.heads, request.kv_heads, request.width)

    @property
    def statistics(self) -> int:
        """Bytes of the softmax statistics for each document of a call."""
        return 4 * self.batch * self.queries * self.heads

    @property
    def scratch(self) -> int:
        """Bytes of a backward call for each document: float32 gradients of the queries, a sum of each, and the
        statistics."""
        return self.statistics * (self.width + 2)

    @property
    def query_bytes(self) -> int:
        return 2 * self.batch * self.queries * self.heads * self.width

    @property
    def key_bytes(self) -> int:
        return self.query_bytes // self.heads * self.kv_heads


class Room(NamedTuple):
    """Capacity of one call."""

    forward: int
    """Documents of each row in a forward call, which covers all rows and heads."""
    backward: int
    """Documents of each row in a backward call."""
    rows: int
    """Rows of a backward call."""
    kv_heads: int
    """KV heads of a backward call, with their query heads."""

    @classmethod
    def of(cls, shape: Shape) -> Room:
        """The most rows and heads of a backward call whose `FEWEST` documents of each row fit in `SCRATCH`: all heads
        if there is more than one row, and at least one row and one KV head."""
        wanted = max(FEWEST, shape.queries // _SHORT)
        parts = [shape._replace(batch=rows) for rows in _divisors(shape.batch)]
        one = parts[-1]
        group = shape.heads // shape.kv_heads
        parts += [one._replace(heads=group * heads, kv_heads=heads) for heads in _divisors(shape.kv_heads)[1:]]
        part = next((part for part in parts if SCRATCH // part.scratch >= FEWEST), parts[-1])
        forward, backward = (min(wanted, SCRATCH // size) for size in (shape.statistics, part.scratch))
        return cls(forward, backward, part.batch, part.kv_heads)

    def part(self, shape: Shape) -> Shape:
        """Shape of a backward call."""
        heads = shape.heads // shape.kv_heads * self.kv_heads
        return shape._replace(batch=self.rows, heads=heads, kv_heads=self.kv_heads)

    def parts(self, shape: Shape) -> tuple[int, int]:
        """Numbers of parts that the rows and the heads are divided into."""
        return shape.batch // self.rows, shape.kv_heads // self.kv_heads

    def scratch(self, shape: Shape) -> int:
        """Bytes of scratch memory of a backward call."""
        return self.backward * self.part(shape).scratch


def scratch_bytes(shape: Shape) -> int:
    """Memory of forward or backward beyond arguments and results, whichever is larger: softmax statistics of the
    documents and, if the backward is divided, arguments and gradients of a part."""
    room = Room.of(shape)
    part = room.part(shape)
    copies = 0 if part == shape else 4 * part.query_bytes + 4 * part.key_bytes
    return max(room.forward * shape.statistics, room.scratch(shape) + copies)


def note(request: Request) -> str | None:
    """A plan's note on cuDNN with packed documents; None without packed documents."""
    if not request.mask.segmented:
        return None
    shape = Shape.of(request)
    room = Room.of(shape)
    part = room.part(shape)
    shares = f" over {part.batch} of {shape.batch} rows and {part.heads} of {shape.heads} heads"
    return (
        f"documents by their offsets, up to {room.forward} of a row in a forward call and {room.backward} in a "
        f"backward call{'' if part == shape else shares}; compared with plain XLA on the device when the run starts; a "
        f"backward call takes {room.scratch(shape) / 2**30:.1f} GiB of scratch memory"
    )


def _divisors(dividend: int) -> list[int]:
    """Divisors in descending order."""
    return [dividend // count for count in range(1, dividend + 1) if dividend % count == 0]
