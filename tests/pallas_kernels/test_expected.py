"""Bounds of the kernels' speed: steps counted by hand, and the numbers that the pages state."""

from pathlib import Path

import pytest

from pallas_kernels import bounds
from pallas_kernels.attention.mosaic.tiles import TABLE
from pallas_kernels.expected import (
    B200,
    H100,
    PCIE_L2,
    attention_backward_step,
    bound,
    hopper,
    matmul_step,
    speeds,
    tiled_step,
)
from pallas_kernels.grouped_matmul.mosaic.tiles import WIDTHS


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


def test_the_page_has_the_table_that_is_computed() -> None:
    page = Path(__file__).parents[2] / "docs" / "kernel-speeds.md"
    assert bounds.table() in page.read_text()
    at_pcie = [PCIE_L2 * tiled_step(128 * pieces, pieces=pieces).flops_per_byte / 1e12 for pieces in (2, 1)]
    assert [round(speed) for speed in at_pcie] == [910, 683]


def test_a_blackwell_waits_for_its_caches_where_a_hopper_multiplies() -> None:
    """Twice the operations a clock, and the same bytes: grouped tiles reach half of the peak."""
    each = speeds(bounds.rows()[-3].step, B200)
    assert each["tensor"] == pytest.approx(2250e12) and each["l2"] < 0.5 * each["tensor"]
    assert bounds.grouped(2048, B200) == each["l2"]
    assert bounds.grouped(2048, H100) == bound(matmul_step(256))


def test_an_h20_has_the_caches_of_its_multiprocessors_and_a_part_of_the_tensor_cores() -> None:
    h20 = hopper(78, 148e12, 4e12)
    assert h20.l2 / H100.l2 == pytest.approx(78 / 132) and bounds.grouped(2048, h20) == pytest.approx(148e12)
