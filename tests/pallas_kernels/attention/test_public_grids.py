"""The kinds of cases that JAX's and tokamax' tests of attention have, of fewer tokens, by Triton's kernels in Pallas'
interpreter and by Mosaic's in its simulator.

JAX's are of `tests/pallas/mgpu_attention_test.py`, tokamax' of `tokamax/_src/ops/attention/test_base.py`. Left out is
what `flash_attention` has no argument for: a bias, any mask pair by pair, dropout and quantized inputs.
"""

from typing import NamedTuple

import numpy as np
import pytest

from pallas_kernels.masks import Mask
from tests.pallas_kernels.attention.cases import Case, check
from tests.pallas_kernels.attention.mosaic import test_mosaic
from tests.pallas_kernels.attention.mosaic.simulator import watch_tensor_cores
from tests.pallas_kernels.attention.triton.test_triton import KERNELS
from tests.pallas_kernels.dense64 import Tokens

FULL, PACKED = Mask(causal=False), Mask(segmented=True)


class Row(NamedTuple):
    """A case, and the segments of its queries and keys."""

    case: Case
    queries: np.ndarray
    keys: np.ndarray
    order: tuple[bool, bool] = (True, True)
    """Whether queries, and keys, come in the order of their indices; else they are shuffled."""


def documents(*lengths: tuple[int, int]) -> np.ndarray:
    """A row of documents, each with padding behind it."""
    parts = [[number] * tokens + [0] * padding for number, (tokens, padding) in enumerate(lengths, 1)]
    return np.concatenate(parts)[None].astype(np.int32)


def rows(length: int, count: int = 1) -> np.ndarray:
    return np.ones((count, length), np.int32)


EQUAL = np.concatenate([np.repeat(np.arange(1, n + 1), 64 // n)[None] for n in (2, 4, 8)]).astype(np.int32)
REALISTIC = documents((18, 2), (13, 7), (1, 4), (34, 1))

JAX = {
    "4 heads over 1, 4 rows": Row(Case(FULL, heads=4, kv_heads=1, dtype="float16"), rows(64, 4), rows(64, 4)),
    "6 heads over 3, causal": Row(Case(Mask(), heads=6, kv_heads=3, neighbours=True), rows(64), rows(64)),
    "fewer queries than keys": Row(Case(FULL, heads=6, kv_heads=3, dtype="float16"), rows(56, 3), rows(64, 3)),
    "no pair is kept": Row(Case(PACKED, neighbours=True), rows(48) * 0, rows(48) * 0),
    "documents of equal lengths": Row(Case(PACKED, neighbours=True), EQUAL, EQUAL),
    "documents with padding between them": Row(Case(PACKED, neighbours=True), REALISTIC, REALISTIC),
    "the same, both ways": Row(Case(Mask(causal=False, segmented=True)), REALISTIC, REALISTIC),
    "window": Row(Case(Mask(window=16), neighbours=True), rows(100), rows(100)),
}
TOKAMAX = {
    "more keys than queries": Row(Case(FULL), rows(64, 2), rows(96, 2)),
    "causal, fewer keys": Row(Case(Mask(), neighbours=True), rows(64, 2), rows(32, 2)),
    "causal, fewer keys that fill no block": Row(Case(Mask(), neighbours=True), rows(64), rows(35)),
    "queries in any order": Row(Case(Mask()), rows(64), rows(64), order=(False, True)),
    "keys in any order": Row(Case(Mask()), rows(64), rows(64), order=(True, False)),
    "padding behind queries and keys": Row(
        Case(Mask(causal=False, segmented=True)), documents((29, 35)), documents((8, 56))
    ),
    "soft-cap of 10": Row(Case(FULL, softcap=10.0), rows(64), rows(64)),
    "one query": Row(Case(FULL), rows(1), rows(7)),
    "one key": Row(Case(FULL), rows(7), rows(1)),
    "16 heads over 4, width 64": Row(Case(FULL, 64, 16, 4, (64, 64)), rows(40), rows(40)),
}
ROWS = {f"jax: {name}": row for name, row in JAX.items()} | {f"tokamax: {name}": row for name, row in TOKAMAX.items()}

ONE_HEAD = test_mosaic.hopper(FULL, heads=1, kv_heads=1)
CAUSAL = ONE_HEAD._replace(mask=Mask(), neighbours=True)
ANY_ORDER = CAUSAL._replace(neighbours=False)
PADDED = ONE_HEAD._replace(mask=Mask(causal=False, segmented=True))
HOPPER = {
    "no pair is kept": Row(test_mosaic.hopper(PACKED, neighbours=True), rows(48) * 0, rows(48) * 0),
    "one query": Row(ONE_HEAD, rows(1), rows(150)),
    "one key": Row(ONE_HEAD, rows(150), rows(1)),
    "causal, fewer keys": Row(CAUSAL, rows(200), rows(128)),
    "causal, fewer keys that fill no block": Row(CAUSAL, rows(150), rows(35)),
    "queries in any order": Row(ANY_ORDER, rows(200), rows(200), order=(False, True)),
    "keys in any order": Row(ANY_ORDER, rows(200), rows(200), order=(True, False)),
    "padding behind queries and keys": Row(PADDED, documents((29, 121)), documents((8, 142))),
}
"""Cases at the ends of rows and masks, for the simulator."""


def tokens_of(row: Row) -> Tokens:
    draw = np.random.default_rng(0)
    index = lambda ids, sorted: np.tile(
        np.arange(ids.shape[1]) if sorted else draw.permutation(ids.shape[1]), (len(ids), 1)
    ).astype(np.int32)
    queries, keys = (index(ids, order) for ids, order in zip((row.queries, row.keys), row.order, strict=True))
    return Tokens(queries, keys, row.queries, row.keys, np.zeros(len(row.queries), np.int32))


@pytest.mark.matrix(quick=("jax: documents with padding between them",), ci=3)
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_results_and_gradients_by_triton_are_as_near_to_float64_as_plain_jax(row: Row) -> None:
    check(KERNELS, row.case, tokens_of(row))


@pytest.mark.matrix(quick=("no pair is kept",), ci=1)
@pytest.mark.parametrize("row", HOPPER.values(), ids=HOPPER)
def test_so_are_those_by_mosaic(row: Row, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    watch_tensor_cores(monkeypatch)
    test_mosaic.check(row.case, tokens_of(row), capfd)
