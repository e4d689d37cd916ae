"""Tiles that the GPU suite times beside the entries of the tables."""

from benchmarks.gpu import tiles
from benchmarks.gpu.report import table
from pallas_kernels.attention import kinds
from pallas_kernels.attention.mosaic.tiles import TABLE
from pallas_kernels.attention.triton.tiles import AMPERE
from tests.benchmarks.gpu.rows import H200


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
    assert {(case.width, case.name) for case in tiles.cases()} == {
        (wide, kind) for wide, _ in AMPERE for kind in kinds.KINDS
    }
    assert all(kinds.kind_of(case.mask) == case.name for case in tiles.cases())


def test_the_report_states_what_an_entry_should_be():
    row = {"part": "tiles", "kind": "tile", "kernel": "triton", "launch": "dq", "width": 64, "mask": "packed"}
    entry = row | {"tile": "a", "entry": True, "best": False, "of_entry": 1.0, "seconds": 2e-3}
    other = row | {"tile": "b", "entry": False, "best": True, "of_entry": 0.9, "seconds": 1.8e-3}
    result = {"device": H200, "dry_run": False, "seconds": 1.0, "targets": []}
    assert "2.000 ms  a should be b, 0.90 of its time" in table(result | {"rows": [entry, other]})
    assert "2.000 ms  a stays" in table(result | {"rows": [entry | {"best": True}, other | {"best": False}]})
    assert "FAILED: too much" in table(result | {"rows": [row | {"tile": "a", "entry": True, "failed": "too much"}]})
