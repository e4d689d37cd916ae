"""The layer of the model in each row of the stacked weights, and the order in which a chunk's layers run.

Layers of one kind are one stack. A stack's rows are split over the pipe axis in one piece a rank; a rank's rows are
its chunks, one after the other. One program runs on all ranks, so all chunks have the same *slots*, each of a kind, and
a chunk skips those that it has no layer for: the rows of these only pad the stack. Without kinds there are as many
slots as the longest chunk has layers; with kinds the slots are a common supersequence of the kinds of all chunks. With
one chunk a rank and stages of one length the rows are the layers in order. The order matters only for the memory
layout: seeds, dropout and checkpoints use the layer's number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain, count
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, PyTree

from jaxpar.config.kinds import ALL

type Index = int | Int[Array, ""]

PADDING = -1
"""Number of a row that holds no layer."""

LAYERS = "layers"
"""The key of the layers in a tree of weights; below it there is a tree for each kind."""


class Chunk(NamedTuple):
    """A chunk of this rank in the stacks of weights, or of their gradients."""

    stack: PyTree[Array]
    """Arrays [row, ...] by kind; the rows of a chunk are contiguous."""
    chunk: Index
    """Its index among the rank's chunks."""
    index: Index
    """Its index in the stacks: `chunk`, or a slot if the stacks have only the chunks in use."""


class Slot(NamedTuple):
    """A place in which a chunk may have a layer."""

    kind: str
    row: int
    """Row of the chunk, in the stack of the kind."""


@dataclass(frozen=True, eq=False)
class StackOrder:
    """The number of the layer in each row of a kind's stack, [rank, chunk of the rank, row of the chunk]; `PADDING`
    for none."""

    numbers: Int[np.ndarray, "ranks chunks rows"]

    @property
    def rows(self) -> int:
        """Rows of the whole stack, padding included."""
        return self.numbers.size

    @property
    def rows_per_chunk(self) -> int:
        """Rows of a chunk, padding included."""
        return self.numbers.shape[2]

    @cached_property
    def padded_in_some_chunk(self) -> Bool[np.ndarray, " rows"]:
        """Whether each row of a chunk only pads the stack in some chunks."""
        return (self.numbers == PADDING).any(axis=(0, 1))

    @property
    def padded(self) -> bool:
        """Whether some rows hold no layer."""
        return bool(self.padded_in_some_chunk.any())

    @property
    def layers(self) -> Int[np.ndarray, " layers"]:
        """The numbers of the layers in the stack, ascending."""
        return np.sort(self.numbers[self.numbers != PADDING])

    @property
    def is_ordered(self) -> bool:
        """Whether the rows are the layers in order."""
        return not self.padded and bool((np.diff(self.numbers.ravel()) > 0).all())

    @property
    def row_of_layer(self) -> Int[np.ndarray, " layers"]:
        """The row of each layer in the stack, in the order of the model."""
        flat = self.numbers.ravel()
        order = np.argsort(flat, kind="stable")
        return order[flat[order] != PADDING]

    @property
    def places(self) -> Int[np.ndarray, " rows"]:
        """Layer of each row, numbered in model order; `PADDING` for none."""
        flat = self.numbers.ravel()
        return np.where(flat == PADDING, PADDING, np.searchsorted(self.layers, flat))

    @property
    def layers_of_rows(self) -> list[list[int]]:
        """Layers that each row of a chunk has in any chunk."""
        rows = self.numbers.reshape(-1, self.rows_per_chunk).T
        return [row[row != PADDING].tolist() for row in rows]

    def local(self, chunk: Index) -> Int[Array, " rows"]:
        """Inside the step's `shard_map`: the numbers of the layers of this rank's `chunk`."""
        numbers = jnp.asarray(self.numbers, jnp.int32)
        return numbers[lax.axis_index("pipe"), chunk]


@dataclass(frozen=True, eq=False)
class LayerOrder:
    """The rows of a model's layers in the stacks, and the slots in which they run."""

    stacks: Mapping[str, StackOrder]
    """Stacks by kind, in the order in which the kinds first occur."""
    slots: tuple[Slot, ...]
    """The slots of every chunk, in the order in which they run."""

    @staticmethod
    def from_chunks(rank_of: Sequence[int], layers: Sequence[int]) -> LayerOrder:
        """Chunks of layers that are alike, in model order: the rank of each, and its number of layers."""
        return LayerOrder.from_kinds(rank_of, [(ALL,) * length for length in layers])

    @staticmethod
    def from_kinds(rank_of: Sequence[int], chunks: Sequence[Sequence[str]]) -> LayerOrder:
        """Chunks in model order: the rank of each, and the kinds of its layers."""
        program = common_sequence(chunks)
        slots, rows_of = [], Counter[str]()
        for kind in program:
            slots.append(Slot(kind, rows_of[kind]))
            rows_of[kind] += 1
        kinds_in_order = dict.fromkeys(chain.from_iterable(chunks))
        stacks = {kind: [[] for _ in range(max(rank_of) + 1)] for kind in kinds_in_order}
        numbers = count()
        for rank, kinds in zip(rank_of, chunks, strict=True):
            rows = {kind: np.full(rows_of[kind], PADDING) for kind in stacks}
            following = iter(slots)
            for kind in kinds:  # each layer takes the first slot of its kind after that of the layer before
                slot = next(slot for slot in following if slot.kind == kind)
                rows[kind][slot.row] = next(numbers)
            for kind, row in rows.items():
                stacks[kind][rank].append(row)
        return LayerOrder({kind: StackOrder(np.array(ranks)) for kind, ranks in stacks.items()}, tuple(slots))

    @property
    def layers_per_chunk(self) -> int:
        """Slots of a chunk: its layers and the padding."""
        return len(self.slots)

    @property
    def padded(self) -> bool:
        """Whether some chunks skip a slot."""
        return any(stack.padded for stack in self.stacks.values())

    @property
    def is_ordered(self) -> bool:
        """Whether the rows of every stack are its layers in order."""
        return all(stack.is_ordered for stack in self.stacks.values())

    @cached_property
    def first_slots(self) -> Int[np.ndarray, "ranks chunks"]:
        """The first slot in which each chunk has a layer."""
        each = np.stack([self.stacks[kind].numbers[:, :, row] for kind, row in self.slots], axis=-1)
        return np.argmax(each != PADDING, axis=-1)

    def stack_at(self, path: Sequence[object]) -> StackOrder:
        """The stack of the stacked leaf at `path` of a tree of weights or of their states.

        `path` is JAX's, or a sequence of names.
        """
        names = [str(getattr(key, "key", key)) for key in path]
        return self.stacks[names[names.index(LAYERS) + 1]]


def without_kind[Key](path: Sequence[Key]) -> tuple[Key, ...]:
    """JAX's `path` of a leaf of a tree of weights without the name of a kind; initial values depend on it."""
    names = [getattr(key, "key", key) for key in path]
    return (*path[:1], *path[2:]) if names[0] == LAYERS else tuple(path)


def common_sequence(chunks: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """A common supersequence of the kinds of all chunks: the shortest for two chunks, and a short one for more, built
    chunk by chunk, the longest first."""
    distinct = sorted(dict.fromkeys(map(tuple, chunks)), key=len, reverse=True)
    return reduce(_shortest_common, distinct)


def _shortest_common(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """The shortest common supersequence: `a` if it contains `b`, as where all are of one kind; else by their longest
    common subsequence."""
    rest = iter(a)
    if all(kind in rest for kind in b):
        return a
    longest = np.zeros((len(a) + 1, len(b) + 1), int)
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            same = a[i] == b[j]
            longest[i, j] = longest[i + 1, j + 1] + 1 if same else max(longest[i + 1, j], longest[i, j + 1])
    merged: list[str] = []
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            merged, i, j = [*merged, a[i]], i + 1, j + 1
        elif longest[i + 1, j] >= longest[i, j + 1]:
            merged, i = [*merged, a[i]], i + 1
        else:
            merged, j = [*merged, b[j]], j + 1
    return (*merged, *a[i:], *b[j:])
