"""The kernels for Hopper GPUs: tiles of the result of one group, as in `pallas_kernels.grouped_matmul`, each a sum of
products of 128 codes that are scaled and added up in float32 registers, as in `pallas_kernels.tiled_matmul`.

Rows times matrices: tiles begin where their group begins, or up to 7 rows before, at a multiple of 8. What a tile loads
before and behind its group is multiplied with the group's matrix too, and not written: a row's sum has nothing of
another row.

Gradients of matrices sum over the rows of a group, of which each has whole tiles: nothing else is loaded. The units of
a Hopper sum along neighbouring bytes alone, so both operands come transposed within each tile of 128 rows, in which
order XLA writes them where it quantises; to transpose the whole would take it another pass over the codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels.attention.mosaic.memory import Loaded, tiled
from pallas_kernels.attention.mosaic.schedule import CONSUMERS, ROWS, TILE, specialise
from pallas_kernels.choice import HOPPER, INDEXED, refused_by_gpu
from pallas_kernels.device import multiprocessors
from pallas_kernels.grouped_matmul.blocks import all_row_blocks, longest_first
from pallas_kernels.grouped_matmul.mosaic.kernel import At, Kernel, Tiles, Work
from pallas_kernels.grouped_matmul.mosaic.tiles import ALIGN, SECTION
from pallas_kernels.grouped_matmul.mosaic.tiles import STEP as PIECE
from pallas_kernels.grouped_tiled_matmul.request import Request
from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.pallas import pl
from pallas_kernels.tiled_matmul.mosaic import STEP, add_products, pieces_of, zeros
from pallas_kernels.varying import vary_over, varying_axes

STAGES = {1: 5, 2: 3}
"""Steps in shared memory, by pieces of a tile: the most that fit into 227 KiB beside a piece of the result and the rows
that leave a tile one by one."""


def refusal(request: Request) -> str | None:
    """None if the kernel supports the request, otherwise the reason."""
    if (reason := refused_by_gpu(request, only=(HOPPER,), dtypes=("bfloat16",))) is not None:
        return reason
    cut, fits = ("squares", request.squares) if request.of == "rows" else ("tiles", True)
    if request.n % TILE or request.k % TILE or request.tile != STEP or not fits:
        return f"sides of matrices are multiples of {TILE}, cut into {cut} of {STEP}, not {request}"
    if max(request.m * max(request.k, request.n), request.groups * request.n * request.k) >= INDEXED:
        return f"its arrays have at most 2^31 - 1 elements, which {request} exceeds"
    return None


def grouped_tiled_matmul(
    rows: Shaped[Array, "m k"],
    row_scales: Float[Array, "m tiles"],
    weights: Shaped[Array, "groups n k"],
    weight_scales: Float[Array, "groups row_tiles tiles"],
    sizes: Int[Array, " groups"],
    dtype: Any,
    *,
    interpret: bool = False,
) -> Float[Array, "m n"]:
    """Like `api.grouped_tiled_matmul`."""
    (m, k), n = rows.shape, weights.shape[1]
    blocks, steps = all_row_blocks(sizes, m, TILE, k // STEP, ALIGN)
    work = Work(*blocks, steps)
    work = Work(*(jnp.pad(each, (0, -each.shape[0] % SECTION)) for each in work))  # without rows: nothing is done
    # A step's scales side by side, in rows of whole 16 bytes, as TMA loads them; it loads no single number, so that a
    # square's scale is repeated for its rows: 3% of the bytes of the codes.
    of_rows = jnp.pad(row_scales.astype(jnp.float32), ((0, -m % ALIGN), (0, 0))).T
    of_weights = jnp.repeat(weight_scales.astype(jnp.float32), n // weight_scales.shape[1], axis=1).mT
    arrays = rows, weights, of_rows, of_weights
    return _launch("rows", arrays, work, (m, n), dtype, interpret)


def of_weights(
    rows: Shaped[Array, "m k"],
    row_scales: Float[Array, "tiles k"],
    d_out: Shaped[Array, "m n"],
    d_out_scales: Float[Array, "tiles n"],
    sizes: Int[Array, " groups"],
    dtype: Any,
    *,
    interpret: bool = False,
) -> Float[Array, "groups k n"]:
    """Like `api.grouped_tiled_weight_gradients`."""
    order, start, end = longest_first(sizes, rows.shape[0])
    work = Work(order, start, jnp.zeros_like(start), end - start, (end - start) // STEP)
    transposed = lambda quantized: quantized.reshape(-1, STEP, quantized.shape[1]).mT
    arrays = transposed(rows), transposed(d_out), row_scales.astype(jnp.float32), d_out_scales.astype(jnp.float32)
    shape = sizes.shape[0], rows.shape[1], d_out.shape[1]
    return _launch("weights", arrays, work, shape, dtype, interpret)


def _launch(
    of: Literal["rows", "weights"], arrays: tuple[jax.Array, ...], work: Work, shape: tuple[int, ...], dtype: Any,
    interpret: bool,
) -> jax.Array:  # fmt: skip
    """The result, of this shape. `arrays` are the codes of both operands, and their scales."""
    tiles = Tiles(pieces_of(shape[-1]) * TILE, of, transposed=True)
    of_rows, columns, count = of == "rows", shape[-1] // tiles.columns, work.group.shape[0]
    sides, section = (1, SECTION) if of_rows else (shape[1] // TILE, 1)
    # The simulator runs several programs in turn.
    programs = 1 if interpret else min(multiprocessors(), count * sides * columns)
    body = _Kernel(tiles, count, sides, columns, section, programs, dtype)
    out = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(shape, dtype),
        scratch_types={"memory": body.memory_of(arrays[0].dtype, arrays[1].dtype)},
        grid=(programs,),
        grid_names=("program",),
        num_threads=CONSUMERS + 1,
        thread_name="warpgroup",
        kernel_name="grouped_matmul_of_tiles" if of_rows else "grouped_matmul_of_weight_tiles",
        interpret=plgpu.InterpretGPUParams(detect_races=True) if interpret else None,
    )(*arrays, *work)
    return vary_over(out, varying_axes(arrays[0]))  # a launch forgets what its results vary over


class _Memory(NamedTuple):
    """Buffers in shared memory."""

    left: Loaded
    """64 quantized rows and their scales, by step and consumer."""
    right: Loaded
    """128 quantized rows of a matrix, or of transposed gradients, of each piece, and their scales, by step."""
    out: Any
    """A piece of the result, by consumer."""
    rest: Any
    """See `pallas_kernels.grouped_matmul.mosaic.kernel.Memory`."""


class _Arrays(NamedTuple):
    """Arrays in global memory."""

    left: Any
    """[rows, codes]; of gradients, and so is the right one, [tiles, rows, codes of a tile]."""
    right: Any
    """Quantized matrices [groups, rows, contraction]."""
    left_scales: Any
    right_scales: Any
    work: Work
    out: Any


@dataclass(frozen=True)
class _Kernel(Kernel):
    @property
    def of_rows(self) -> bool:
        return self.tiles.of == "rows"

    @property
    def pieces(self) -> int:
        return self.tiles.columns // TILE

    def memory_of(self, left: Any, right: Any) -> _Memory:
        """The types of its shared memory, given formats."""
        slots = STAGES[self.pieces]
        return _Memory(
            Loaded.of(slots * CONSUMERS, 1, ROWS, (STEP,), left, (1, jnp.float32)),
            Loaded.of(slots, CONSUMERS, self.tiles.columns, (STEP,), right, (1, jnp.float32)),
            tiled((CONSUMERS, ROWS, TILE), self.dtype),
            plgpu.SMEM((CONSUMERS, ROWS, PIECE), self.dtype) if self.of_rows else None,
        )

    def __call__(self, left: Any, right: Any, *refs: Any, memory: Any) -> None:
        left_scales, right_scales, *rest = refs
        arrays = _Arrays(left, right, left_scales, right_scales, Work(*rest[:5]), rest[5])
        specialise(partial(self.consume, arrays, memory), partial(self.produce, arrays, memory))

    def produce(self, arrays: Any, memory: Any) -> None:
        def load_tile(at: At) -> None:
            first, before = (at.start, 0) if self.of_rows else (at.side, lax.div(at.start, jnp.int32(STEP)))
            group = (at.group,) if self.of_rows else ()

            def load(index: Any, _: None) -> None:
                step = before + index
                quantized = lambda rows: (rows, pl.ds(step * STEP, STEP)) if self.of_rows else (step, rows)
                scales, columns = pl.ds(step, 1), pl.ds(at.column, self.tiles.columns)
                slot = memory.right.slot(at.done + index)
                for half in range(CONSUMERS):
                    local_rows = pl.ds(first + half * ROWS, ROWS)
                    sources = arrays.left.at[quantized(local_rows)], arrays.left_scales.at[scales, local_rows]
                    memory.left.load(slot * CONSUMERS + half, *sources)
                sources = arrays.right.at[*group, *quantized(columns)], arrays.right_scales.at[*group, scales, columns]
                memory.right.load(slot, *sources)

            lax.fori_loop(0, at.steps, load, None)

        self.for_each_tile(arrays.work, load_tile)
        memory.left.drain()
        memory.right.drain()

    def consume(self, arrays: Any, memory: Any, warpgroup: Any) -> None:
        for slot in range(STAGES[self.pieces]):
            memory.left.release(slot * CONSUMERS + warpgroup)
            memory.right.release(slot)
        self.for_each_tile(arrays.work, partial(self.multiply, arrays, memory, warpgroup))
        plgpu.wait_smem_to_gmem(0)

    def multiply(self, arrays: Any, memory: Any, warpgroup: Any, at: At) -> None:
        """Compute this consumer's half of a tile."""
        add = lambda index, sums: add_products(memory, warpgroup, at.done + index, sums, squares=self.of_rows)
        half = memory.out.at[warpgroup]
        for piece, total in enumerate(lax.fori_loop(0, at.steps, add, zeros(self.pieces))):
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            half[...] = total.astype(half.dtype)
            plgpu.commit_smem()
            self.write(half, arrays.out, memory.rest, warpgroup, at._replace(column=at.column + piece * TILE))
