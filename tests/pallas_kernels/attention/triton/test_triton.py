"""The Triton kernels in Pallas' interpreter, which puts NaN past the end of an array, against float64."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.attention import ForwardBackward, MaskInputs, triton
from pallas_kernels.attention.triton.lists import per_key_block, per_query_block
from pallas_kernels.attention.triton.tiles import Tile, Tiles, pieces
from pallas_kernels.masks import Mask
from tests.pallas_kernels.attention.cases import FLOOR, Case, check, mask_inputs, merged_parts, random_inputs, results
from tests.pallas_kernels.dense64 import Tokens, worst
from tests.pallas_kernels.test_masks import packed_rows

TILE = Tile(queries=16, keys=32, warps=4, stages=2)
TILES = Tiles(TILE, TILE, Tile(queries=32, keys=16, warps=4, stages=2))
KERNELS = ForwardBackward(partial(triton.forward, tile=TILE), partial(triton.backward, tiles=TILES))


CASES = {
    "causal": Case(Mask(), neighbours=True),
    "full-multi-query-float16": Case(Mask(causal=False), 33, 3, 1, dtype="float16"),
    "packed-window-softcap": Case(Mask(window=20, segmented=True), 70, softcap=1.5, neighbours=True),
    "prefix-some-queries": Case(Mask(prefix=True), queries=slice(23, 45)),
    "one-token": Case(Mask(), 1),
}
LONG = {
    "causal-113": Case(Mask(), 113, 2, 1),
    "packed-203-width-96": Case(Mask(segmented=True), 203, 2, 1, (96, 96)),
    "window-both-ways": Case(Mask(causal=False, window=9), 64, 2, 2),
    "packed-both-ways": Case(Mask(causal=False, segmented=True), 70, 2, 2),
    "prefix-window-packed": Case(Mask(window=15, segmented=True, prefix=True), 70),
    "two-widths": Case(Mask(), 40, 2, 2, (192, 128)),
    "multiples-of-tiles": Case(Mask(), 64, 2, 2, (64, 64)),
}


def tokens_of(case: Case) -> Tokens:
    """Documents of uneven lengths, the second row with padding at its end, and only some of the queries."""
    length = case.length
    rows = np.zeros((2, length), np.int32)
    rows[0] = 1 + np.searchsorted([2, length // 3, length // 2], np.arange(length), side="right")
    rows[1, : -(-length * 4 // 5)] = 1
    return Tokens.whole_rows(rows, np.array([length // 4, length - 3], np.int32)).queries(case.queries)


@pytest.mark.matrix(quick=1, ci=2)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_output_lse_and_gradients_are_as_near_to_float64_as_plain_jax(case: Case) -> None:
    check(KERNELS, case, tokens_of(case))


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize("case", LONG.values(), ids=LONG)
def test_so_are_they_for_more_lengths_widths_and_masks(case: Case) -> None:
    check(KERNELS, case, tokens_of(case))


@settings(max_examples=15, deadline=None)
@given(segments=packed_rows(length=43))
def test_any_packing_of_a_row_equals_float64(segments: np.ndarray) -> None:
    check(KERNELS, Case(Mask(segmented=True), 43, 2, 1), Tokens.whole_rows(segments))


def test_what_lies_past_the_end_of_an_array_is_nan_here() -> None:
    """So that a kernel whose results are finite has not used it."""

    def kernel(x: Any, out: Any) -> None:
        out[...] = plgpu.load(x.at[pl.ds(8 + pl.program_id(0), 16)])

    shape = jax.ShapeDtypeStruct((16,), jnp.float32)
    read = pl.pallas_call(kernel, grid=(1,), out_shape=shape, interpret=True)(jnp.ones(12))
    assert np.array_equal(np.isnan(read), np.arange(8, 24) >= 12)


@pytest.mark.long
def test_parts_of_a_row_merge_into_the_whole_and_results_are_the_same_bits_in_every_run() -> None:
    case = Case(Mask(segmented=True), 48, 2, 1)
    tokens = tokens_of(case)
    inputs = random_inputs(case, tokens)
    whole = results(KERNELS, case.settings, mask_inputs(tokens), inputs)
    for name, again in results(KERNELS, case.settings, mask_inputs(tokens), inputs).items():
        assert np.array_equal(again, whole[name], equal_nan=True), name
    both_ends = np.r_[0:12, 36:48]  # of a rank, and the rest of another
    merged, _ = merged_parts(KERNELS, case, tokens, inputs, [both_ends, np.arange(12, 36)])
    # In bfloat16 the probabilities of a part are rounded relative to another peak.
    apart = worst(merged, {name: np.asarray(x, np.float64) for name, x in whole.items()})
    assert max(apart.values()) <= 1e-2 and apart["lse"] <= FLOOR, apart


def test_nothing_but_the_diagonal_is_cut_or_visited_in_vain_under_a_causal_mask() -> None:
    indices = jnp.arange(64)[None]
    for neighbours in (False, True):
        visits = per_query_block(Mask(), MaskInputs(indices, indices), 8, 8, neighbours=neighbours)
        assert np.array_equal(visits.full[0], np.arange(8)) and np.array_equal(visits.visited[0], np.arange(8) + 1)


def test_padding_beside_the_last_document_is_seen_from_no_other() -> None:
    """A block that has both visits its document's blocks alone, and is visited by them alone."""
    indices, segments = jnp.arange(64)[None], jnp.repeat(jnp.array([1, 2, 3, 0]), jnp.array([16, 16, 20, 12]))[None]
    tokens = MaskInputs(indices, indices, segments, segments)
    for neighbours in (False, True):
        of_queries = per_query_block(Mask(segmented=True), tokens, 8, 8, neighbours=neighbours)
        of_keys = per_key_block(Mask(segmented=True), tokens, 8, 8, neighbours=neighbours)
        assert list(map(int, of_queries.visited[0])) == [1, 2, 1, 2, 1, 2, 3, 0]
        assert list(map(int, of_keys.visited[0])) == [2, 1, 2, 1, 3, 2, 1, 0]


def test_a_short_window_makes_the_lists_short() -> None:
    indices = jnp.arange(64)[None]
    visits = per_query_block(Mask(window=8), MaskInputs(indices, indices), 8, 8)
    assert max(map(int, visits.visited[0])) == 2


@pytest.mark.parametrize(("width", "expected"), [(64, (64,)), (96, (64, 32)), (192, (128, 64)), (256, (256,))])
def test_heads_are_cut_into_powers_of_two(width: int, expected: tuple[int, ...]) -> None:
    assert tuple(size for _, size in pieces(width)) == expected
