"""Measured tables: they replace shares near what was measured, and nothing elsewhere."""

from dataclasses import replace

import pytest

from jaxpar.cost.hardware_model import HOPPER, HardwareModel
from jaxpar.cost.messages import Ring, network_of
from jaxpar.cost.operations import Device, device_of
from jaxpar.cost.tables import Row, Table, Tables
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.cluster import parse_cluster

PRODUCTS = Table("matmul", (2, False))
FITTED = device_of(gpu_named("h100"), HOPPER)


def with_tables(rows: dict[Table, list[Row]]) -> HardwareModel:
    return replace(HOPPER, measured=Tables(rows))


def device(rows: dict[Table, list[Row]]) -> Device:
    return device_of(gpu_named("h100"), with_tables(rows))


def ring(rows: dict[Table, list[Row]], ranks: int = 16) -> Ring:
    return network_of(parse_cluster("h100:2x8"), with_tables(rows)).ring(ranks, 1)


def test_between_measured_shapes_the_formula_is_scaled_by_what_is_nearest():
    """Rows twice as slow as the formula at one end of a gap and four times at the other: in between, in between."""
    ends = [(4096, 4096, 4096), (8192, 4096, 4096)]
    slow = device(
        {PRODUCTS: [Row(end, factor * FITTED.matmul(*end)) for end, factor in zip(ends, (2, 4), strict=True)]}
    )
    ratios = [slow.matmul(m, 4096, 4096) / FITTED.matmul(m, 4096, 4096) for m in (4096, 5120, 6144, 8192)]
    assert ratios == sorted(ratios)
    assert (ratios[0], ratios[-1]) == (pytest.approx(2), pytest.approx(4))
    assert 2.05 < ratios[1] < ratios[2] < 3.95


def test_attention_is_measured_for_each_query_and_head_of_our_own_kernels_alone():
    rows = {
        Table("attention forward", (128, 2)): [Row((4096.5,), 1e-7)],
        Table("attention backward", (128, 2)): [Row((4096.5,), 3e-7)],
    }
    forward, backward = device(rows).flash(2, 32, 8192, 4096.5, 128, "mosaic")
    assert (forward, backward) == (pytest.approx(2 * 32 * 8192 * 1e-7), pytest.approx(2 * 32 * 8192 * 3e-7))
    assert device(rows).flash(2, 32, 8192, 4096.5, 128, "triton") == FITTED.flash(2, 32, 8192, 4096.5, 128, "triton")
    assert device(rows).flash(2, 32, 8192, 4096.5, 64, "mosaic") == FITTED.flash(2, 32, 8192, 4096.5, 64, "mosaic")


@pytest.mark.parametrize(
    ("kind", "method"),
    [("gather", "gather"), ("all_reduce", "reduce"), ("all_to_all", "exchange"), ("permute", "shift")],
)
def test_messages_are_measured_by_group_and_size(kind: str, method: str):
    rows = {Table(kind, (16, 2)): [Row((2**20,), 0.5), Row((2**24,), 0.75)]}
    fitted = getattr(ring({}), method)
    assert getattr(ring(rows), method)(2**20) == pytest.approx(0.5)
    assert getattr(ring(rows), method)(2**24) == pytest.approx(0.75)
    assert getattr(ring(rows), method)(2**30) == fitted(2**30)
    assert getattr(ring(rows), method)(0) == 0
    assert getattr(ring(rows, 8), method)(2**20) == getattr(ring({}, 8), method)(2**20)
