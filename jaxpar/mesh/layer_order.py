"""Which layer of the model lies in which row of the stacked weights, when a pipeline splits them.

The stack's rows are split over the pipe axis in one piece a rank; a rank's rows are its chunks, one after the other,
each padded to the longest (one program runs on all ranks). With one chunk a rank and stages of one length the rows are
the layers in order. The order is a matter of memory alone: seeds, dropout and checkpoints go by the layer's number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

type Index = int | Int[Array, ""]

PADDING = -1
"""Number of a row that holds no layer."""


class Parted(NamedTuple):
    """A stack of weights or of their gradients, of which the first rows rest in the host's memory."""

    host: Any
    """Arrays [row, ...] in pinned host memory, of which the rows up to those on the device count."""
    device: Any
    """Arrays [row, ...] on the device: the other rows."""


class Chunk(NamedTuple):
    """A chunk of this rank in a stack of weights, or of their gradients."""

    stack: Any
    """Arrays [row, ...]; the rows of a chunk lie together."""
    chunk: Index
    """Which of the rank's chunks it is."""
    place: Index
    """Where in the stack it lies: as `chunk`, or in a slot where the stack has only the chunks in use."""


@dataclass(frozen=True, eq=False)
class LayerOrder:
    """The number of the layer in each row, [rank, chunk of the rank, row of the chunk]; `PADDING` for none."""

    numbers: Int[np.ndarray, "ranks chunks rows"]

    @staticmethod
    def of_one_rank(layers: int) -> LayerOrder:
        """All layers in order."""
        return LayerOrder(np.arange(layers).reshape(1, 1, layers))

    @staticmethod
    def of_chunks(rank_of: Sequence[int], layers: Sequence[int]) -> LayerOrder:
        """Chunks in model order: the rank of each, and its number of layers."""
        ranks, longest = max(rank_of) + 1, max(layers)
        starts = np.concatenate([[0], np.cumsum(layers)])
        rows: list[list[np.ndarray]] = [[] for _ in range(ranks)]
        for chunk, (rank, count) in enumerate(zip(rank_of, layers, strict=True)):
            row = np.full(longest, PADDING)
            row[:count] = np.arange(starts[chunk], starts[chunk] + count)
            rows[rank].append(row)
        return LayerOrder(np.array(rows))

    @property
    def rows(self) -> int:
        """Rows of the whole stack, padding included."""
        return self.numbers.size

    @property
    def layers_per_chunk(self) -> int:
        """Rows of a chunk, padding included."""
        return self.numbers.shape[2]

    @property
    def padded(self) -> bool:
        """Whether some rows hold no layer."""
        return bool((self.numbers == PADDING).any())

    @property
    def shortest(self) -> int:
        """Layers of the shortest chunk: as many rows hold a layer in every chunk, the first ones."""
        return int((self.numbers != PADDING).sum(axis=2).min())

    @property
    def in_order(self) -> bool:
        """Whether the rows are the layers in order."""
        return bool((self.numbers.ravel() == np.arange(self.rows)).all())

    @property
    def row_of_layer(self) -> Int[np.ndarray, " layers"]:
        """The row of each layer of the model."""
        flat = self.numbers.ravel()
        order = np.argsort(flat, kind="stable")
        return order[flat[order] != PADDING]

    def own(self, chunk: Index) -> Int[Array, " rows"]:
        """Inside the step's map: the numbers of the layers of this rank's `chunk`."""
        numbers = jnp.asarray(self.numbers, jnp.int32)
        return numbers[lax.axis_index("pipe"), chunk]
