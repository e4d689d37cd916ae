"""The operands of chunks in shared memory, where each is loaded anew as soon as it was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from pallas_kernels.attention.mosaic.memory import tiled
from pallas_kernels.attention.mosaic.schedule import zero
from pallas_kernels.linear_attention.chunk import CHUNK, Chunk
from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.pallas import pl

COLUMNS = 64
"""Dims of values of a program: a head of 128 gives two, since a device often has fewer rows and heads than
multiprocessors, and 256 x 64 numbers of a state are 128 registers of a thread."""


class Slots(NamedTuple):
    """An operand of some chunks: types of memory and barriers, in a kernel references to them."""

    memory: Any
    ready: Any
    """A barrier a slot: it has arrived."""

    @classmethod
    def of(cls, slots: int, rows: int, width: int, dtype: Any) -> Slots:
        """The types of a matrix of each chunk, or with `rows` of 0 of a vector."""
        memory = tiled((slots, rows, width), dtype) if rows else plgpu.SMEM((slots, width), dtype)
        return cls(memory, plgpu.Barrier(num_barriers=slots))

    def slot(self, step: Any) -> Any:
        """The slot of a step."""
        return lax.rem(step, jnp.int32(self.memory.shape[0])) + zero(step)

    def wait(self, step: Any) -> Any:
        """The operand of a step, once it has arrived."""
        slot = self.slot(step)
        plgpu.barrier_wait(self.ready.at[slot])
        return self.memory.at[slot]


class Source(NamedTuple):
    """The slots of an operand, and what they are loaded with."""

    slots: Slots
    at: Callable[[Any], Any]
    """The operand of a step in global memory."""

    def fetch(self, step: Any) -> None:
        """Begin to load the operand of a step by TMA."""
        slot = self.slots.slot(step)
        plgpu.copy_gmem_to_smem(self.at(step), self.slots.memory.at[slot], self.slots.ready.at[slot])


class Operands(NamedTuple):
    """The operands of a kernel, in the order of `Chunk`, whose `removed` is negative here, so that products add up."""

    sources: tuple[Source, ...]
    steps: int

    def first(self) -> None:
        """Load as many first steps as there are slots."""
        for source in self.sources:
            for step in range(min(self.steps, source.slots.memory.shape[0])):
                source.fetch(jnp.int32(step))

    def wait(self, step: Any, index: int) -> Any:
        """The operand at `index`, of a step."""
        return self.sources[index].slots.wait(step)

    def next(self, step: Any, *indices: int) -> None:
        """Load operands that all products of this step have read for the step that takes their slots."""
        plgpu.commit_smem()  # for all threads
        for source in (self.sources[index] for index in indices):
            later = step + source.slots.memory.shape[0]
            pl.when(later < self.steps)(lambda source=source, later=later: source.fetch(later))


READ, SCORES, COLUMN, WRITE, KEEP, REMOVED = range(6)
"""Indices of operands; that of values has the columns of a program, and only the delta rule has the last one."""


def arrays_of(chunks: Chunk) -> tuple[Any, ...]:
    """The operands in their order."""
    arrays = chunks.read, chunks.scores, chunks.made, chunks.write, chunks.keep
    return arrays if chunks.removed is None else (*arrays, chunks.removed)


def slots_of(key: int, delta: bool, dtype: Any) -> tuple[Slots, ...]:
    """The types of memory of the operands, for keys of a width; two slots if 227 KiB have room for them."""
    slots = 2 if key <= 128 else 1
    of = lambda width: Slots.of(slots, CHUNK, width, dtype)
    common = of(key), of(CHUNK), of(COLUMNS), of(key), Slots.of(slots, 0, key, jnp.float32)
    return (*common, of(key)) if delta else common


def operands_of(arrays: tuple[Any, ...], slots: tuple[Slots, ...], steps: int, chunk_of: Callable) -> Operands:
    """The operands of this program, at each step of the chunk that `chunk_of` gives."""
    head, columns = program()
    at = lambda array: lambda step: array.at[chunk_of(step), head]
    of_columns = lambda array: lambda step: array.at[chunk_of(step), head, :, columns]
    sources = (
        Source(memory, (of_columns if index == COLUMN else at)(array))
        for index, (array, memory) in enumerate(zip(arrays, slots, strict=True))
    )
    return Operands(tuple(sources), steps)


def program() -> tuple[Any, Any]:
    """The head and the dims of values of this program."""
    return lax.axis_index("head"), pl.ds(lax.axis_index("columns") * COLUMNS, COLUMNS)
