"""Products in the chunks of a ring beside whole ones."""

import jax
import numpy as np
import pytest

from benchmarks.gpu import rings
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.targets import targets


@pytest.mark.parametrize("case", rings.DRY, ids=lambda case: case.kind)
def test_products_in_chunks_of_a_ring_are_those_of_whole_ones_in_as_many_matmuls(case: rings.Case):
    arrays = case.arrays()
    for way, each in (("forward", 1), ("backward", 2)):
        programs = {chunks: case.program(chunks, way) for chunks in (None, 2)}
        count = lambda run: run.lower(*arrays).as_text().count("stablehlo.dot_general")
        whole, cut = count(programs[None]), count(programs[2])
        assert (whole, cut) == (each * len(case.widths), each * len(case.widths) * case.ranks * 2)
        for one, other in zip(*(jax.tree.leaves(run(*arrays)) for run in programs.values()), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-4)


def test_rings_are_timed_beside_whole_products_and_held_to_their_target():
    journal = Journal("rings", float("inf"), dry=True)
    rings.measure(journal)
    rows = [row for row in journal.rows if row["kind"] == "ring"]
    assert {(row["case"], row["chunks"], row["way"]) for row in rows} == {
        (case.name, chunks, way) for case in rings.DRY for chunks in (None, 2) for way in rings.WAYS
    }
    wholes = {(row["case"], row["way"]): row["seconds"] for row in rows if row["chunks"] is None}
    assert all(row["of_whole"] == row["seconds"] / wholes[row["case"], row["way"]] for row in rows)
    timed = [
        row | {"case": rings.TIMED[0].name, "of_whole": ratio}
        for ratio, row in zip(
            (1.02, 1.04),
            (next(row for row in rows if (row["chunks"], row["way"]) == (2, way)) for way in rings.WAYS),
            strict=True,
        )
    ]
    found = {target["what"]: target["met"] for target in targets(timed, "NVIDIA H200") if "of a ring" in target["what"]}
    assert [found.pop(f"products of a ring in 2 chunks, against whole ones: {rings.TIMED[0].name}, {way}")
            for way in rings.WAYS] == [True, False]  # fmt: skip
    assert len(found) == 6 and {*found.values()} == {None}
