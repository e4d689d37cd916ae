"""Tiles that the GPU suite times beside the entries of the tables."""

from benchmarks.gpu import tiles
from pallas_kernels.attention.mosaic.tiles import TABLE
from pallas_kernels.attention.triton.tiles import AMPERE
from pallas_kernels.masks import KINDS


def test_an_entry_of_a_table_is_timed_beside_what_differs_by_one_step_in_one_thing():
    entry = AMPERE[128, 128].forward
    found = tiles.of_triton(entry)
    assert len(set(found)) == 7 and entry not in found
    assert all(sum(a != b for a, b in zip(entry, one, strict=True)) == 1 for one in found)
    of_hopper = TABLE[128, 128]
    assert {one.keys for one in tiles.of_mosaic(of_hopper.forward)} == {64, 128, 192}
    (_, cut), *_ = of_hopper.key_gradients
    assert {(name, one.stages) for ((name, one),) in tiles.of_mosaic((("kv", cut),))} == {
        ("kv", cut.stages + by) for by in (-1, 0, 1)
    }
    assert {(case.width, case.name) for case in tiles.cases()} == {(wide, kind) for wide, _ in AMPERE for kind in KINDS}
    assert all(case.mask.kind == case.name for case in tiles.cases())
