"""Rows of the lengths that are run on devices, with the tiles of the tables, in interpreters and on paper."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from pallas_kernels.attention import ForwardBackward, MaskInputs, triton
from pallas_kernels.attention.mosaic import bounds
from pallas_kernels.attention.mosaic.tiles import TABLE
from pallas_kernels.attention.mosaic.tiles import tiles as mosaic_tiles
from pallas_kernels.attention.triton import lists
from pallas_kernels.attention.triton.tiles import tiles as triton_tiles
from pallas_kernels.masks import Mask
from tests.pallas_kernels import dense64
from tests.pallas_kernels.attention import blocks64
from tests.pallas_kernels.attention.cases import MASKS, Case, check_errors, mask_inputs, random_inputs, results
from tests.pallas_kernels.dense64 import Tokens, worst
from tests.pallas_kernels.test_masks import packed_rows, random_tokens


def tokens_of(length: int, padding: int) -> Tokens:
    """Documents of about 300 tokens, and padding."""
    row = 1 + np.searchsorted(np.cumsum([7, 300, 530, 290, 64, 64, 800, 128, 1100]), np.arange(length), side="right")
    row[length - padding :] = 0
    return Tokens.whole_rows(row[None].astype(np.int32), np.array([length // 3], np.int32))


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_blocks_of_queries_agree_with_all_pairs_at_once(mask: Mask) -> None:
    tokens, rng = random_tokens(0), np.random.default_rng(0)
    q, d_out = rng.normal(size=(2, 2, 9, 2, 4))
    k, v = rng.normal(size=(2, 2, 11, 2, 4))
    d_lse = rng.normal(size=(2, 9, 2))
    kept = dense64.pairs(mask, tokens)
    assert np.array_equal(blocks64.pairs(mask, tokens), kept)
    found = blocks64.attention(q, k, v, d_out, d_lse, mask, tokens, block=4)
    assert max(worst(found, dense64.attention(q, k, v, kept, d_out, d_lse)).values()) < 1e-12


class Row(NamedTuple):
    """One head of width 64."""

    length: int
    mask: Mask
    capability: float
    """Whose tiles."""
    neighbours: bool = True


ROWS = {
    "1023, packed, in lists": Row(1023, Mask(segmented=True), 8.0, neighbours=False),
    "1024, causal": Row(1024, Mask(), 9.0),
    "4224, packed, window": Row(4224, Mask(window=1000, segmented=True), 9.0),
}


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_triton_is_as_near_to_float64_as_plain_jax(row: Row) -> None:
    tokens = tokens_of(row.length, 100)
    case = Case(row.mask, row.length, 1, 1, (64, 64), neighbours=row.neighbours)
    inputs, tiles = random_inputs(case, tokens), triton_tiles(64, 64, row.capability, row.mask.kind)
    kernels = ForwardBackward(partial(triton.forward, tile=tiles.forward), partial(triton.backward, tiles=tiles))
    exact = {name: np.asarray(x, np.float64) for name, x in inputs.items()}
    expected = blocks64.attention(**exact, mask=row.mask, tokens=tokens)
    check_errors(results(kernels, case.settings, mask_inputs(tokens), inputs), case, tokens, inputs, expected)


CHECKED = {
    "1024, packed, window": (1024, Mask(window=200, segmented=True)),
    "1023, full": (1023, Mask(causal=False)),
    "4224, packed, window": (4224, Mask(window=1000, segmented=True)),
}


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize(("length", "mask"), CHECKED.values(), ids=CHECKED)
def test_tiles_visit_every_block_with_a_kept_pair_by_every_entry_of_the_tables(
    length: int, mask: Mask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways to say what a tile visits, against every pair: none is missed, none comes twice, none that is cut is
    called whole, and an interval states what a list says."""
    tokens, kind = tokens_of(length, length // 9), mask.kind
    kept, gpus = blocks64.pairs(mask, tokens), (9.0,) if length > 4000 else (8.0, 9.0, 10.0)
    if length == 1024:
        monkeypatch.setattr(lists, "_PAIRS", 64)  # some tiles at a time, as in rows of a million tokens
    of_triton = {(tile.queries, tile.keys) for of in TABLE for gpu in gpus for tile in triton_tiles(*of, gpu, kind)}
    hopper = [mosaic_tiles(*widths) for widths in TABLE]
    of_mosaic = {(128, tiles.forward.keys) for tiles in hopper} | {
        (128, tiles.query_gradients.keys) for tiles in hopper
    }
    of_mosaic |= {(cut.queries, 128) for tiles in hopper for _, cut in tiles.key_gradients}
    check_visits(mask, tokens, kept, tuple(of_triton), tuple(of_mosaic))


SMALL = ((2, 3),)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "in any order"])
def test_so_they_do_by_small_tiles_of_tokens_in_any_order(mask: Mask, in_order: bool) -> None:
    row = np.array([[1] * 5 + [2] * 4 + [0] * 2] * 2, np.int32)
    tokens = Tokens.whole_rows(row, np.array([4, 11], np.int32)) if in_order else random_tokens(0)
    check_visits(mask, tokens, dense64.pairs(mask, tokens), SMALL, SMALL, in_order)


@settings(max_examples=15, deadline=None)
@given(segments=packed_rows(length=13))
def test_so_they_do_for_any_packing(segments: np.ndarray) -> None:
    mask, tokens = Mask(segmented=True), Tokens.whole_rows(segments)
    check_visits(mask, tokens, dense64.pairs(mask, tokens), SMALL, SMALL)


def check_visits(
    mask: Mask, tokens: Tokens, kept: np.ndarray, of_triton: tuple, of_mosaic: tuple, in_order: bool = True
) -> None:
    """Of tiles of these sizes; intervals are of tokens that come in order."""
    found = visits_of(mask, of_triton, of_mosaic, mask_inputs(tokens))
    for (q_block, kv_block), both_ways in zip([*of_triton, *of_mosaic], found, strict=True):
        for of_keys, ways in zip((False, True), both_ways, strict=True):
            pairs_, sizes = (kept.swapaxes(1, 2), (kv_block, q_block)) if of_keys else (kept, (q_block, kv_block))
            assert not in_order or np.array_equal(ways[0][1], ways[1][1])
            for blocks, counts, *order in ways if in_order else ways[:1]:
                check(np.asarray(blocks), np.asarray(counts), pairs_, sizes)
                for longest_first in order:
                    assert (np.diff(np.asarray(counts)[..., 1].reshape(-1)[longest_first]) <= 0).all()


@partial(jax.jit, static_argnums=(0, 1, 2))
def visits_of(mask: Mask, of_triton: tuple, of_mosaic: tuple, tokens: MaskInputs) -> list:
    """Of each pair of block sizes (blocks and counts in a list, the same as an interval), of queries' tiles and
    keys'."""
    limits = bounds.Limits.of(mask)

    def triton_visits(made, size: tuple[int, int]) -> tuple:
        in_list, interval = (made(mask, tokens, *size, neighbours=neighbours) for neighbours in (False, True))
        order = interval.blocks(in_list.order.shape[-1])
        return tuple(
            (order, jnp.stack([found.full, found.visited], -1))
            for order, found in ((in_list.order, in_list), (order, interval))
        )

    def mosaic_visits(of_keys: bool, size: tuple[int, int]) -> tuple:
        given = bounds.query_limits(mask, tokens, size[0]), bounds.key_tokens(mask, tokens, size[1])
        return tuple(bounds.visits(limits, *given, *size, of_keys, intervals) for intervals in (None, mask))

    makers = lists.per_query_block, lists.per_key_block
    return [tuple(triton_visits(made, size) for made in makers) for size in of_triton] + [
        tuple(mosaic_visits(of_keys, size) for of_keys in (False, True)) for size in of_mosaic
    ]


def check(order: np.ndarray, counts: np.ndarray, kept: np.ndarray, sizes: tuple[int, int]) -> None:
    """What tiles visit, in the order in which they do, against all pairs [batch, of tiles, of blocks]."""
    some, every = (blocked(kept, *sizes, which) for which in (np.any, np.all))
    for row, tile in np.ndindex(counts.shape[:2]):
        whole, visited = counts[row, tile]
        assert visited <= order.shape[-1]
        mine = order[row, tile, :visited]
        assert len(set(mine)) == visited and (mine < some.shape[2]).all()
        assert set(np.flatnonzero(some[row, tile])) <= set(mine)
        assert every[row, tile, mine[:whole]].all()


def blocked(kept: np.ndarray, of_tile: int, of_block: int, which: np.ufunc) -> np.ndarray:
    """`any` or `all` of the pairs of each block; padding counts for neither."""
    by_rows = np.stack([which(kept[:, i : i + of_tile], axis=1) for i in range(0, kept.shape[1], of_tile)], 1)
    return np.stack([which(by_rows[:, :, i : i + of_block], axis=2) for i in range(0, kept.shape[2], of_block)], 2)


@pytest.mark.parametrize("of_keys", [False, True])
@pytest.mark.parametrize("blocks", [(128, 128), (32, 128), (128, 64)], ids=str)
def test_a_window_behind_keys_that_fill_no_block_leaves_no_tile_more_than_its_list(
    blocks: tuple[int, int], of_keys: bool
) -> None:
    """Queries as a ring has them when it comes to the keys of the rank before, and with an offset."""
    mask, indices = Mask(window=100), jnp.arange(1000)[None]

    @jax.jit
    def visits(tokens: MaskInputs) -> bounds.Visits:
        queries, keys = bounds.query_limits(mask, tokens, blocks[0]), bounds.key_tokens(mask, tokens, blocks[1])
        return bounds.visits(bounds.Limits.of(mask), queries, keys, *blocks, of_keys, mask)

    found = visits(MaskInputs(indices + 1000, indices))
    sizes, kept = (
        blocks,
        blocks64.pairs(mask, Tokens(*np.asarray([indices + 1000, indices]), indices, indices, indices[0])),
    )
    if of_keys:
        sizes, kept = blocks[::-1], kept.swapaxes(1, 2)
    check(np.asarray(found.blocks), np.asarray(found.lengths), kept, sizes)


def test_under_a_window_lists_are_as_short_as_it_leaves_them() -> None:
    indices = jnp.arange(4096)[None]
    mask, limits = Mask(window=500), bounds.Limits.of(Mask(window=500))

    @jax.jit
    def visits(tokens: MaskInputs) -> bounds.Visits:
        queries, keys = bounds.query_limits(mask, tokens, 128), bounds.key_tokens(mask, tokens, 128)
        return bounds.visits(limits, queries, keys, 128, 128, False, mask)

    found = visits(MaskInputs(indices, indices))
    assert found.blocks.shape == (1, 32, 6) and int(found.lengths[..., 1].max()) == 5


@pytest.mark.parametrize("mask", [Mask(), Mask(window=4096), Mask(segmented=True)], ids=str)
def test_a_million_tokens_need_no_list(mask: Mask) -> None:
    """Nothing has a number for each pair of blocks, of which there are 2^26 here: 256 MiB."""
    row = jax.ShapeDtypeStruct((1, 2**20), jnp.int32)
    for made in (lists.per_query_block, lists.per_key_block):
        compiled = jax.jit(partial(made, mask, queries=128, keys=128, neighbours=True)).lower(
            MaskInputs(row, row, row, row)
        ).compile()  # fmt: skip
        memory = compiled.memory_analysis()
        assert memory.output_size_in_bytes < 2**18 and memory.temp_size_in_bytes < 2**26, memory
