"""Bounds of the speed of every kernel and tile on Hopper and Blackwell, for the page and the benchmarks of kernels.

A step is what a program of a persistent grid does between two loads: of a matmul, a part of the sum for one tile of the
result; of attention, one block beside one tile. `speeds` divides its FLOPs by the time of each level alone, so that the
least of them bounds the kernel. Nothing here was measured on our kernels.

`python -m benchmarks.gpu.bounds` prints the table; docs/kernels.md has its bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from pallas_kernels.attention.mosaic.tiles import TABLE
from pallas_kernels.grouped_matmul.mosaic.tiles import WIDTHS, columns
from pallas_kernels.tiled_matmul.mosaic import pieces_of

type Level = Literal["hbm", "l2", "shared", "tensor", "float32", "exponentials"]

HALF = 64
"""Rows of a product of the tensor cores, and of a consumer of all kernels."""
CONSUMERS = 2
FLOAT32 = 4


@dataclass(frozen=True)
class Machine:
    """Rates of a GPU, of all multiprocessors together."""

    processors: int
    clock: float
    """Hz."""
    hbm: float
    """Bytes per second."""
    l2: float
    """Bytes per second into shared memory."""
    shared: int = 128
    """Bytes per clock of a multiprocessor: reads of the tensor cores, and writes of TMA and of registers."""
    tensor: float = 4096.0
    """FLOPs per clock of a multiprocessor in 16 bits; twice as many in 8."""
    lanes: int = 128
    """Operations of float32 per clock of a multiprocessor."""
    exponentials: int = 16
    """Per clock of a multiprocessor."""
    tensor_memory: bool = False
    """Whether products are summed in tensor memory (Blackwell), and not in registers."""


H100 = Machine(processors=132, clock=1.83e9, hbm=3.35e12, l2=10.6e12)
"""An H100 SXM: processors, HBM and peak (989 TFLOP/s at this clock) are the datasheet's, rates per clock the
whitepaper's. L2 follows from a measurement: tokamax' grouped matmul of 393,216 x 2,048 by 128 x 2,048 x 768 takes
2.737 ms in tiles of 128 x 64 without clusters (openxla/tokamax, data/autotuning, nvidia_h100_80gb_hbm3), 452 TFLOP/s at
42.7 FLOPs a byte. Under power limits clocks are lower than this one."""
PCIE_L2 = 5.5e12
"""Bytes per second of L2 that Chips and Cheese measured on an H100 PCIe (114 processors, 350 W, 1.4 to 1.75 GHz)."""
L2_PER_CLOCK = H100.l2 / (H100.processors * H100.clock)
"""Bytes of L2 per clock of a multiprocessor of an H100: 43.9."""


def blackwell(processors: int, peak: float, hbm: float) -> Machine:
    """A GPU of compute capability 10.0 by its datasheet. Tensor cores do twice a Hopper's operations per clock; shared
    memory and exponentials stay as they were (FlashAttention-4, Together AI, March 2026); its L2 is taken as an H100's
    per clock of a multiprocessor, for want of a measurement."""
    tensor = 8192.0
    clock = peak / (processors * tensor)
    return Machine(processors, clock, hbm, L2_PER_CLOCK * processors * clock, tensor=tensor, tensor_memory=True)


B200 = blackwell(148, 2250e12, 8e12)
"""NVIDIA's HGX B200 datasheet."""


@dataclass(frozen=True)
class Step:
    """Work and traffic of a program in a step."""

    flops: float
    item: int
    """Bytes of a number that is multiplied."""
    l2: float
    """Bytes that it loads."""
    shared: float
    """Bytes that it reads and writes in shared memory."""
    float32: float = 0.0
    """Operations of float32 outside the tensor cores, where they belong to the sum."""
    exponentials: float = 0.0

    @property
    def flops_per_byte(self) -> float:
        """FLOPs for each byte from L2."""
        return self.flops / self.l2

    def cycles(self, machine: Machine) -> dict[Level, float]:
        """Clocks of a multiprocessor at each level inside it."""
        return {
            "shared": self.shared / machine.shared,
            "tensor": self.flops / (machine.tensor * (2 if self.item == 1 else 1)),
            "float32": self.float32 / machine.lanes,
            "exponentials": self.exponentials / machine.exponentials,
        }


def speeds(step: Step, machine: Machine = H100, *, hbm_bytes_per_flop: float = 0.0) -> dict[Level, float]:
    """FLOP/s at which each level alone would run, for levels that the kernel uses."""
    per_clock = machine.processors * machine.clock * step.flops
    rates: dict[Level, float] = {level: per_clock / n for level, n in step.cycles(machine).items() if n}
    rates["l2"] = machine.l2 * step.flops_per_byte
    if hbm_bytes_per_flop:
        rates["hbm"] = machine.hbm / hbm_bytes_per_flop
    return rates


def bound(step: Step, machine: Machine = H100, *, hbm_bytes_per_flop: float = 0.0) -> float:
    """The least of `speeds`, FLOP/s."""
    return min(speeds(step, machine, hbm_bytes_per_flop=hbm_bytes_per_flop).values())


def hbm_bytes_per_flop(m: int, n: int, k: int, item: int, out: int) -> float:
    """Bytes of a product [m, k] x [k, n] whose arrays each pass once; `out` are those of a number of its result."""
    return ((m * k + k * n) * item + m * n * out) / (2.0 * m * n * k)


def matmul_step(columns: int, *, tensor_memory: bool = False) -> Step:
    """A step of a (grouped) matmul in 16 bits: 64 of the sum for a tile of 128 rows of the result.

    Each consumer reads the columns; where sums are in tensor memory (Blackwell), each operand is read once.
    """
    rows, step = CONSUMERS * HALF, 64
    loaded = 2 * step * (rows + columns)
    read = loaded if tensor_memory else 2 * step * (rows + CONSUMERS * columns)
    return Step(2.0 * rows * columns * step, 2, loaded, loaded + read)


def tiled_step(columns: int, *, pieces: int, squares: bool = True) -> Step:
    """A step of a (grouped) matmul of FP8 tiles: 128 of the sum for a tile of 128 rows, in pieces of its columns.

    Each piece reads the rows again; its products are scaled and added in one operation, or with a scale for each column
    in two.
    """
    rows, step = CONSUMERS * HALF, 128
    loaded = (rows + columns) * (step + FLOAT32)
    read = rows * step * pieces + CONSUMERS * columns * step
    operations = (1 if squares else 2) * rows * columns
    return Step(2.0 * rows * columns * step, 1, loaded, loaded + read, float32=operations)


def attention_forward_step(width: int, value_width: int, keys: int) -> Step:
    """A step of attention's forward: a block of keys and values beside a tile of 128 queries.

    Probabilities are multiplied from registers.
    """
    queries, widths = CONSUMERS * HALF, width + value_width
    loaded = 2 * keys * widths
    read = 2 * queries * width + CONSUMERS * loaded
    return Step(2.0 * queries * keys * widths, 2, loaded, loaded + read, exponentials=queries * keys)


def attention_backward_step(width: int, value_width: int, queries: int) -> Step:
    """A step of attention's fused backward: a block of queries beside a tile of 128 keys; five products.

    Gradients of scores pass through shared memory, as their halves are summed over both consumers' keys. The product
    for dQ has 64 rows of queries for each consumer, with fewer than 128 queries half of the columns, and with fewer
    than 64 it is that of the transposed operands.
    """
    keys, widths = CONSUMERS * HALF, width + value_width
    loaded = 2 * queries * widths
    scores = CONSUMERS * 2 * (HALF + queries) * widths  # K Q^T and V dO^T
    of_keys = CONSUMERS * 2 * queries * widths  # dV and dK, whose left operands are in registers
    d_scores = 2 * queries * keys
    if queries < HALF:
        of_queries = 2 * keys * width + width // HALF * d_scores
    elif queries < keys:
        of_queries = CONSUMERS * d_scores + 2 * keys * width
    else:
        of_queries = d_scores + CONSUMERS * 2 * keys * width
    sums = 2 * FLOAT32 * queries * width  # dQ is written, and read by the reduction
    flops = 2.0 * keys * queries * (3 * width + 2 * value_width)
    shared = loaded + scores + of_keys + of_queries + d_scores + sums
    return Step(flops, 2, loaded, shared, exponentials=queries * keys)


TERA = 1e12
TOKENS, HEADS, KV_HEADS = 8192, 64, 8
"""A causal row of attention, whose arrays pass memory once: for the page."""
ROWS, WIDE, DEEP = 1024, 2048, 7168
"""Rows of a group, and sides of its matrix (DeepSeek-V3), whose arrays pass memory once: for the page."""


class Row(NamedTuple):
    """A kernel with one tile, on a machine."""

    kernel: str
    tile: str
    step: Step
    machine: Machine
    hbm_bytes_per_flop: float

    @property
    def text(self) -> str:
        """The row of the page: FLOPs a byte of L2, TFLOP/s of each level, and the least with its share of the peak."""
        each = speeds(self.step, self.machine, hbm_bytes_per_flop=self.hbm_bytes_per_flop)
        least = min(each, key=lambda level: each[level])
        numbers = [f"{each[level] / TERA:,.0f}" for level in ("hbm", "l2", "shared", "tensor")]
        units = [each[level] for level in ("float32", "exponentials") if level in each]
        numbers += [f"{min(units) / TERA:,.0f}" if units else "-"]
        share = f"{each[least] / TERA:,.0f} ({100 * each[least] / each['tensor']:.0f}%)"
        return f"| {self.kernel} | {self.tile} | {self.step.flops_per_byte:.0f} | {' | '.join(numbers)} | {share} |"


def grouped(wide: int, machine: Machine) -> float:
    """FLOP/s that a GPU allows grouped matmuls with results of `wide` columns."""
    return bound(matmul_step(columns(wide), tensor_memory=machine.tensor_memory), machine)


def tiled(wide: int, machine: Machine) -> float:
    """FLOP/s that a Hopper allows (grouped) matmuls of FP8 tiles with results of `wide` columns."""
    pieces = pieces_of(wide)
    return bound(tiled_step(128 * pieces, pieces=pieces), machine)


def rows() -> list[Row]:
    """Every kernel, width and tile of the page."""
    lines = []
    for (width, value_width), tiles in TABLE.items():
        name = f"{width}" if width == value_width else f"{width}/{value_width}"
        step = attention_forward_step(width, value_width, tiles.forward.keys)
        bytes_per_flop = _attention_hbm(width, value_width)
        lines.append(Row("attention forward", f"{name}: {tiles.forward.keys} keys", step, H100, bytes_per_flop))
        if tiles.fused is not None:
            step = attention_backward_step(width, value_width, tiles.fused.queries)
            queries = f"{name}: {tiles.fused.queries} queries"
            lines.append(Row("fused backward", queries, step, H100, _attention_hbm(width, value_width, back=True)))
    of_group = hbm_bytes_per_flop(ROWS, WIDE, DEEP, 2, 2)
    lines += [Row("grouped", f"128 x {wide}", matmul_step(wide), H100, of_group) for wide in WIDTHS]
    of_tiles = hbm_bytes_per_flop(ROWS, WIDE, DEEP, 1, 2)
    for pieces in (2, 1):
        tile = f"128 x {128 * pieces}"
        lines.append(Row("FP8 tiles", tile, tiled_step(128 * pieces, pieces=pieces), H100, of_tiles))
    step = partial(matmul_step, tensor_memory=True)
    return lines + [Row("grouped, B200", f"128 x {wide}", step(wide), B200, of_group) for wide in WIDTHS]


def table() -> str:
    """The table of the page."""
    head = "| kernel | tile | FLOPs a byte of L2 | HBM | L2 | shared memory | tensor cores | other units | bound |"
    return "\n".join([head, "|---" * 9 + "|", *(row.text for row in rows())])


def _attention_hbm(width: int, value_width: int, *, back: bool = False) -> float:
    """Bytes for each FLOP: inputs and output, backward with their gradients, of which dQ is added in float32."""
    pairs, both = HEADS * TOKENS * TOKENS / 2, width + value_width
    of_queries, of_keys = TOKENS * HEADS * 2 * both, TOKENS * KV_HEADS * 2 * both
    if not back:
        return (of_queries + of_keys) / (2 * pairs * both)
    sums = 2 * 4 * TOKENS * HEADS * width  # read and written
    moved = of_queries + TOKENS * HEADS * 2 * value_width + 2 * of_keys + sums
    return moved / (2 * pairs * (3 * width + 2 * value_width))


if __name__ == "__main__":
    print(table())
