"""Kinds of cases of JAX's and tokamax' tests of attention in the simulator: those at the ends of rows and masks.

Segments and orders of tokens are made as for the Triton kernels, which have all kinds of cases.
"""

import pytest

from pallas_kernels.masks import Mask
from tests.pallas_kernels.attention.mosaic.simulator import watch_tensor_cores
from tests.pallas_kernels.attention.mosaic.test_mosaic import Case, check
from tests.pallas_kernels.attention.triton.test_public_grids import FULL, PACKED, Row, documents, rows, tokens_of

FULL_CASE = Case(FULL, heads=1, kv_heads=1)
CAUSAL = Case(Mask(), heads=1, kv_heads=1, neighbours=True)
ANY_ORDER = CAUSAL._replace(neighbours=False)
PADDED = Case(Mask(causal=False, segmented=True), heads=1, kv_heads=1)

ROWS = {
    "no pair is kept": Row(Case(PACKED, neighbours=True), rows(48) * 0, rows(48) * 0),
    "one query": Row(FULL_CASE, rows(1), rows(150)),
    "one key": Row(FULL_CASE, rows(150), rows(1)),
    "causal, fewer keys": Row(CAUSAL, rows(200), rows(128)),
    "causal, fewer keys that fill no block": Row(CAUSAL, rows(150), rows(35)),
    "queries in any order": Row(ANY_ORDER, rows(200), rows(200), order=(False, True)),
    "keys in any order": Row(ANY_ORDER, rows(200), rows(200), order=(True, False)),
    "padding behind queries and keys": Row(PADDED, documents((29, 121)), documents((8, 142))),
}


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> None:
    watch_tensor_cores(monkeypatch)


@pytest.mark.matrix(quick=("no pair is kept",), ci=1)
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_results_and_gradients_are_as_near_to_float64_as_plain_jax(
    row: Row[Case], capfd: pytest.CaptureFixture[str]
) -> None:
    check(row.case, tokens_of(row), capfd)
