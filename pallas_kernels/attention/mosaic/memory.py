"""Shared memory that the producer fills and consumers read, with the barriers between them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from pallas_kernels.pallas import mosaic_gpu as plgpu


class Loaded(NamedTuple):
    """Indices that are filled and used up one by one: types of memory and barriers, in a kernel references to them."""

    memory: tuple[Any, ...]
    """Buffers that are loaded together, each with the slots as its first dim."""
    ready: Any
    """A barrier a slot: all of it has arrived."""
    free: Any
    """A barrier a slot: all who read it are done."""

    @classmethod
    def of(
        cls,
        slots: int,
        readers: int,
        rows: int,
        widths: tuple[int, ...],
        dtype: Any,
        *beside: tuple[int, Any],
        like: int | None = None,
    ) -> Loaded:
        """The types of slots for `rows` rows of these widths, which `readers` warpgroups read.

        `beside` are the numbers that each row has as well: how many, and their dtype. `like` is as for `tiled`.
        """
        matrices = (tiled((slots, rows, width), dtype, like) for width in widths)
        types = (*matrices, *(plgpu.SMEM((slots, count, rows), kind) for count, kind in beside))
        ready = plgpu.Barrier(num_barriers=slots, num_arrivals=len(types))
        return cls(types, ready, plgpu.Barrier(num_barriers=slots, num_arrivals=readers))

    @property
    def slots(self) -> int:
        return self.memory[0].shape[0]

    def slot(self, step: Any) -> Any:
        """The slot of a step."""
        return lax.rem(step, jnp.int32(self.slots))

    def load(self, slot: Any, *sources: Any) -> None:
        """Load a slot by TMA, as soon as it is free."""
        plgpu.barrier_wait(self.free.at[slot])
        for source, memory in zip(sources, self.memory, strict=True):
            plgpu.copy_gmem_to_smem(source, memory.at[slot], self.ready.at[slot])

    def wait(self, slot: Any) -> None:
        """Until it is loaded."""
        plgpu.barrier_wait(self.ready.at[slot])

    def release(self, slot: Any) -> None:
        """Signal that this warpgroup has finished reading the slot."""
        plgpu.barrier_arrive(self.free.at[slot])

    def release_all(self) -> None:
        for slot in range(self.slots):
            self.release(slot)

    def drain(self) -> None:
        """Wait until nobody reads any of it."""
        for slot in range(self.slots):
            plgpu.barrier_wait(self.free.at[slot])

    def at(self, slot: Any) -> tuple[Any, ...]:
        """References to what is loaded in a slot."""
        return tuple(memory.at[slot] for memory in self.memory)


def tiled(shape: tuple[int, ...], dtype: Any, like: int | None = None) -> Any:
    """Shared memory in the order that TMA writes and wgmma reads: tiles of 8 rows, swizzled.

    The two operands of a wgmma are swizzled alike: `like` is the width of one that this is multiplied with.
    """
    bits = jnp.dtype(dtype).itemsize * 8
    swizzle = plgpu.find_swizzle((like or shape[-1]) * bits)
    tiles: Any = plgpu.TilingTransform((8, swizzle * 8 // bits))  # pyright: ignore[reportAbstractUsage]
    order: Any = plgpu.SwizzleTransform(swizzle)  # pyright: ignore[reportAbstractUsage]
    return plgpu.SMEM(shape, dtype, transforms=(tiles, order))
