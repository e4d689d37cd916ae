"""The launch and the loop that both kernels share: a program takes a state through all chunks, in registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels.attention.mosaic.memory import tiled
from pallas_kernels.attention.mosaic.schedule import scalar, zero
from pallas_kernels.linear_attention.chunk import CHUNK, Chunk, Passed
from pallas_kernels.linear_attention.mosaic.operands import (
    COLUMNS,
    Operands,
    Slots,
    arrays_of,
    operands_of,
    program,
    slots_of,
)
from pallas_kernels.pallas import mosaic_gpu as plgpu


class Staged(NamedTuple):
    """Shared memory for what a step multiplies or stores."""

    state: Any
    made: Any
    out: Any


class Step(Protocol):
    """A kernel's step: the next state from the state, whose rounded values are in `staged.state`."""

    def __call__(
        self, operands: Operands, staged: Staged, out: Any, add: Callable[..., Any], delta: bool, at: Any, state: Any
    ) -> jax.Array: ...


def pass_state(
    step: Step,
    chunks: Chunk,
    state: Float[Array, "heads key value"],
    *,
    name: str,
    reverse: bool,
    save: bool,
    add: Callable[..., Any],
    interpret: Any,
) -> Passed:
    """Take `state` through chunks [chunks, heads, ...], whose `removed` is negative and `keep` as wide as keys."""
    count, heads, size, value = chunks.made.shape
    key, dtype = chunks.read.shape[-1], chunks.read.dtype
    delta = chunks.removed is not None
    staged = Staged(*(tiled((1, rows, COLUMNS), dtype) for rows in (key, CHUNK, CHUNK)))
    shape = jax.ShapeDtypeStruct
    rows, end = shape((count, heads, size, value), dtype), shape((heads, key, value), jnp.float32)
    run = plgpu.kernel(
        _Kernel(step, count, delta, reverse, save, add),
        out_type=(rows, end, *([shape((count, heads, key, value), dtype)] if save else [])),
        scratch_types={"memory": (slots_of(key, delta, dtype), staged)},
        compiler_params=plgpu.CompilerParams(approx_math=True),
        grid=(heads, value // COLUMNS),
        grid_names=("head", "columns"),
        kernel_name=f"linear_attention_{name}",
        interpret=interpret,
    )
    # The compiler does not know the number of steps: see `zero`.
    rows, end, *states = run(*arrays_of(chunks), state, jnp.full((1,), count, jnp.int32))
    return Passed(rows, states[0] if save else None, end)


@dataclass(frozen=True)
class _Kernel:
    """The kernel of a step."""

    step: Step
    count: int
    delta: bool
    reverse: bool
    save: bool
    add: Callable[..., Any]

    def __call__(self, *refs: Any, memory: tuple[tuple[Slots, ...], Staged]) -> None:
        slots, staged = memory
        arrays, (first, steps, out, end, *states) = refs[: len(slots)], refs[len(slots) :]
        head, columns = program()
        operands = operands_of(arrays, slots, self.count, self.chunk)
        operands.first()
        read = plgpu.load(first.at[head, :, columns], layout=plgpu.Layout.WGMMA, optimized=False)
        state = read + 0.0  # not typed as varying, which what is computed in a kernel is not: see `scalar`
        body = partial(self.turn, operands, staged, out, states[0] if self.save else None)
        end.at[head, :, columns][...] = lax.fori_loop(0, scalar(steps, 0), body, state)
        plgpu.wait_smem_to_gmem(0)

    def chunk(self, step: Any) -> Any:
        """The chunk of a step."""
        return self.count - 1 - step if self.reverse else step

    def turn(self, operands: Operands, staged: Staged, out: Any, states: Any, at: Any, state: jax.Array) -> jax.Array:
        """Round and store the state, and take the step."""
        staged = Staged(*(x.at[zero(at)] for x in staged))
        of_chunk = lambda ref: ref.at[self.chunk(at), program()[0], :, program()[1]]
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        staged.state[...] = state.astype(staged.state.dtype)
        plgpu.commit_smem()
        if self.save:
            plgpu.copy_smem_to_gmem(staged.state, of_chunk(states))
        return self.step(operands, staged, of_chunk(out), self.add, self.delta, at, state)
