"""Bounds of the kernels' speed: steps counted by hand, and the numbers that the pages state."""

import pytest

from benchmarks.gpu import bounds
from benchmarks.gpu.bounds import (
    B200,
    H100,
    PCIE_L2,
    attention_backward_step,
    bound,
    matmul_step,
    speeds,
    tiled_step,
)
from pallas_kernels.attention.mosaic.tiles import TABLE
from pallas_kernels.grouped_matmul.mosaic.tiles import WIDTHS

TABLE_OF_BOUNDS = """\
| attention forward | 64: 128 keys | 128 | 12,197 | 1,357 | 1,131 | 989 | 989 | 989 (100%) |
| fused backward | 64: 128 queries | 320 | 9,148 | 3,392 | 899 | 989 | 2,474 | 899 (91%) |
| attention forward | 96: 128 keys | 128 | 12,197 | 1,357 | 1,131 | 989 | 1,484 | 989 (100%) |
| fused backward | 96: 64 queries | 320 | 9,148 | 3,392 | 825 | 989 | 3,710 | 825 (83%) |
| attention forward | 128: 128 keys | 128 | 12,197 | 1,357 | 1,131 | 989 | 1,979 | 989 (100%) |
| fused backward | 128: 64 queries | 320 | 9,148 | 3,392 | 860 | 989 | 4,947 | 860 (87%) |
| attention forward | 192/128: 64 keys | 128 | 12,197 | 1,357 | 942 | 989 | 2,474 | 942 (95%) |
| fused backward | 192/128: 32 queries | 333 | 8,809 | 3,528 | 668 | 989 | 6,431 | 668 (68%) |
| attention forward | 256: 64 keys | 128 | 12,197 | 1,357 | 989 | 989 | 3,958 | 989 (100%) |
| grouped | 128 x 256 | 85 | 2,088 | 905 | 989 | 989 | - | 905 (91%) |
| grouped | 128 x 192 | 77 | 2,088 | 814 | 913 | 989 | - | 814 (82%) |
| grouped | 128 x 128 | 64 | 2,088 | 678 | 792 | 989 | - | 678 (69%) |
| FP8 tiles | 128 x 256 | 165 | 3,842 | 1,754 | 1,741 | 1,979 | 7,915 | 1,741 (88%) |
| FP8 tiles | 128 x 128 | 124 | 3,842 | 1,316 | 1,564 | 1,979 | 7,915 | 1,316 (66%) |
| grouped, B200 | 128 x 256 | 85 | 4,986 | 1,028 | 1,500 | 2,250 | - | 1,028 (46%) |
| grouped, B200 | 128 x 192 | 77 | 4,986 | 926 | 1,350 | 2,250 | - | 926 (41%) |
| grouped, B200 | 128 x 128 | 64 | 4,986 | 771 | 1,125 | 2,250 | - | 771 (34%) |"""
"""FLOPs a byte of L2; TFLOP/s of memory, caches, shared memory, tensor cores and other units; the least of them."""


@pytest.mark.parametrize(
    ("widths", "queries", "shared", "products"),
    [
        ((128, 128), 64, 2944, 2560),
        ((64, 64), 128, 2816, 2560),
        ((96, 96), 64, 2304, 1920),
        ((192, 128), 32, 2464, 1664),
    ],
)
def test_a_step_of_the_fused_backward_takes_what_was_counted(
    widths: tuple[int, int], queries: int, shared: int, products: int
) -> None:
    """The numbers are those of docs/decisions.md, "Shared memory stays the bound of the fused backward"; the tiles are
    the table's."""
    fused = TABLE[widths].fused
    assert fused is not None and fused.queries == queries
    cycles = attention_backward_step(*widths, queries).cycles(H100)
    assert (cycles["shared"], cycles["tensor"]) == (shared, products)


def test_bytes_of_a_step_of_matmuls() -> None:
    """128 x 256 numbers of 16 bits: 48 KiB for 4.19 MFLOP. FP8: 128 FLOPs a byte of 128 x 128, beside scales."""
    step = matmul_step(256)
    assert (step.l2, step.flops) == (48 * 1024, 2 * 128 * 256 * 64)
    assert [round(PCIE_L2 * matmul_step(wide).flops_per_byte / 1e12) for wide in WIDTHS] == [469, 422, 352]
    one, two = tiled_step(128, pieces=1), tiled_step(256, pieces=2)
    assert one.l2 == 32 * 1024 + 4 * 256 and one.flops == 2 * 128**3
    assert two.l2 == 0.75 * 2 * one.l2, "three pieces of rows and columns in place of four"


def test_peaks_are_the_datasheets() -> None:
    of_16_bits, of_8 = speeds(matmul_step(256)), speeds(tiled_step(256, pieces=2))
    assert of_16_bits["tensor"] == pytest.approx(989e12, rel=1e-3) and of_8["tensor"] == pytest.approx(
        1979e12, rel=1e-3
    )
    assert bound(tiled_step(256, pieces=2)) > 1.1 * bound(tiled_step(128, pieces=1))


def test_the_table_of_every_kernel_and_tile() -> None:
    assert bounds.table().split("\n")[2:] == TABLE_OF_BOUNDS.split("\n")
    at_pcie = [PCIE_L2 * tiled_step(128 * pieces, pieces=pieces).flops_per_byte / 1e12 for pieces in (2, 1)]
    assert [round(speed) for speed in at_pcie] == [910, 683]


def test_a_blackwell_waits_for_its_caches_where_a_hopper_multiplies() -> None:
    """Twice the operations a clock, and the same bytes: grouped tiles reach half of the peak."""
    each = speeds(bounds.rows()[-3].step, B200)
    assert each["tensor"] == pytest.approx(2250e12) and each["l2"] < 0.5 * each["tensor"]
    assert bounds.grouped(2048, B200) == each["l2"]
    assert bounds.grouped(2048, H100) == bound(matmul_step(256))
