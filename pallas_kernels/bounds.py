"""Bounds of the speed of every kernel and tile, by the functions of `pallas_kernels.expected`: for the page and the
benchmarks of kernels.

`python -m pallas_kernels.bounds` prints the table; docs/kernels.md has its bounds.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from pallas_kernels.attention.mosaic.tiles import TABLE
from pallas_kernels.expected import (
    B200,
    H100,
    Machine,
    Step,
    attention_backward_step,
    attention_forward_step,
    bound,
    hbm_bytes_per_flop,
    matmul_step,
    speeds,
    tiled_step,
)
from pallas_kernels.grouped_matmul.mosaic.tiles import WIDTHS, columns
from pallas_kernels.tiled_matmul.mosaic import pieces_of

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
