"""The Hopper kernels in the simulator of Mosaic GPU, against float64.

It runs every warpgroup with its barriers and asynchronous copies, watches for races (`simulator` adds what tensor cores
read), and fills fresh memory with NaN. What it lacks is an operand of wgmma in registers and an accumulator that starts
from a value: `matmuls.Simulated` puts a trip through shared memory in their place; the rest of a kernel is what a GPU
gets.
"""

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from pallas_kernels.attention import MaskInputs, Settings
from pallas_kernels.attention.mosaic import DETERMINISTIC_KERNELS, KERNELS, forward, matmuls
from pallas_kernels.attention.mosaic.bounds import Limits, key_tokens, query_limits, visits
from pallas_kernels.attention.mosaic.tiles import TABLE
from pallas_kernels.attention.mosaic.tiles import tiles as table_tiles
from pallas_kernels.masks import Mask
from tests.pallas_kernels.attention import cases
from tests.pallas_kernels.attention.mosaic.simulator import REPORTED, watch_tensor_cores
from tests.pallas_kernels.dense64 import Tokens, pairs
from tests.pallas_kernels.test_masks import random_tokens
from tests.sentences import refused


def hopper(
    mask: Mask, length: int = 150, heads: int = 2, kv_heads: int = 1, widths: tuple[int, int] = (64, 64),
    softcap: float | None = None, **more: Any,
) -> cases.Case:  # fmt: skip
    """A case with the defaults of rows for Hopper."""
    return cases.Case(mask, length, heads, kv_heads, widths, softcap, **more)


CASES = {
    "packed-window-softcap": hopper(Mask(window=60, segmented=True), 150, softcap=2.0, deterministic=True, louder=4.0)
}
LONG = {
    "causal-fused": hopper(Mask(), 203, results="inputs", neighbours=True),
    "one-token": hopper(Mask(), 1),
    "full-float16": hopper(Mask(causal=False), 150, 1, 1, widths=(128, 128), dtype="float16"),
    "full": hopper(Mask(causal=False), 203, 1, 1, results="inputs"),
    "packed-width-96": hopper(Mask(segmented=True), 150, 1, 1, widths=(96, 96)),
    "causal-deterministic": hopper(Mask(), 150, 1, 1, deterministic=True),
    "packed-width-96-deterministic": hopper(Mask(segmented=True), 150, 1, 1, (96, 96), deterministic=True),
    "causal-width-128-deterministic": hopper(Mask(), 150, 2, 1, (128, 128), deterministic=True, neighbours=True),
    "window-softcap-width-128": hopper(Mask(window=60), 150, 2, 1, (128, 128), 2.0),
    "causal-softcap-fused": hopper(Mask(), 150, softcap=2.0, louder=4.0),
    "window-two-widths": hopper(Mask(window=20), 70, 1, 1, (192, 128), deterministic=True, neighbours=True),
    "prefix-two-widths": hopper(Mask(prefix=True), 113, 1, 1, widths=(192, 128), results="inputs"),
    "some-queries-width-256": hopper(Mask(window=50), 113, 1, 1, (256, 256), queries=slice(30, 113), results="inputs"),
}


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the cases do, one consumer still reads the keys of a tile when the other is long done with them."""
    watch_tensor_cores(monkeypatch, late_in="product_over_halves", seconds=0.1)


def tokens_of(case: cases.Case) -> Tokens:
    """A row of two documents and padding."""
    row = np.zeros((1, case.length), np.int32)
    row[0, : -(-case.length * 9 // 10)] = 2
    row[0, : case.length // 3] = 1
    return Tokens.whole_rows(row, np.array([case.length // 2], np.int32)).queries(case.queries)


def check(case: cases.Case, tokens: Tokens, capfd: pytest.CaptureFixture[str]) -> None:
    kernels = DETERMINISTIC_KERNELS if case.deterministic else KERNELS
    cases.check(kernels, case, tokens, apart=case.deterministic or TABLE[case.widths].fused is None)
    assert REPORTED not in capfd.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_output_lse_and_gradients_are_as_near_to_float64_as_plain_jax(
    case: cases.Case, capfd: pytest.CaptureFixture[str]
) -> None:
    check(case, tokens_of(case), capfd)


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize("case", LONG.values(), ids=LONG)
def test_so_are_they_for_more_lengths_widths_and_masks(case: cases.Case, capfd: pytest.CaptureFixture[str]) -> None:
    check(case, tokens_of(case), capfd)


def test_every_entry_of_the_tables_is_simulated() -> None:
    """With a soft-cap and without, and those of the deterministic kernels."""
    entries, simulated = set(), set()
    for widths, softcap in itertools.product(TABLE, (None, 2.0)):
        entries |= {(widths, *item) for item in table_tiles(*widths, softcap)._asdict().items()}
    for case in [*CASES.values(), *LONG.values()]:
        entry = table_tiles(*case.widths, case.softcap)
        of_one_kernel = entry.fused is not None and not case.deterministic
        used = {"forward", "fused"} if of_one_kernel else {"forward", "query_gradients", "key_gradients"}
        simulated |= {(case.widths, *item) for item in entry._asdict().items() if item[0] in used or item[1] is None}
    assert entries == simulated


@pytest.mark.parametrize("mask", cases.MASKS, ids=str)
def test_limits_hide_all_but_the_pairs_that_the_mask_keeps(mask: Mask) -> None:
    tokens = random_tokens(0)
    kept, named = pairs(mask, tokens), cases.mask_inputs(tokens)
    queries, keys = query_limits(mask, named, 2), key_tokens(mask, named, 3)
    ones = jnp.ones((queries.shape[0], queries.shape[2], keys.shape[2]))
    hidden = Limits.of(mask).hide(ones, 0.0, lambda i: queries[:, i, :, None], lambda i: keys[:, i, None, :])
    assert np.array_equal(np.asarray(hidden)[:, : kept.shape[1], : kept.shape[2]] == 1.0, kept)


def test_a_long_packed_row_visits_few_blocks() -> None:
    indices = jnp.arange(4096)[None]
    segments = 1 + indices // 512
    mask, tokens = Mask(segmented=True), MaskInputs(indices, indices, segments, segments)
    made = query_limits(mask, tokens, 128), key_tokens(mask, tokens, 128)
    found = jax.jit(partial(visits, Limits.of(mask), q_block=128, kv_block=128, of_keys=False))(*made)
    assert np.array_equal(np.asarray(found.lengths)[0, :, 1], np.tile([1, 2, 3, 4], 8))
    assert np.array_equal(np.asarray(found.lengths)[0, :, 0], np.tile([0, 1, 2, 3], 8)), "only the diagonal is masked"


def test_a_scale_that_turns_the_order_of_scores_around_is_refused() -> None:
    indices = jnp.arange(4)[None]
    x = jnp.ones((1, 4, 1, 64), jnp.bfloat16)
    with refused("'mosaic'", "scale above 0", "-1", error=ValueError):
        forward(Settings(Mask(), -1.0, interpret=True), x, x, x, MaskInputs(indices, indices))


@pytest.mark.parametrize("cores", [132, 78])
def test_there_is_a_program_for_each_multiprocessor_of_the_gpu(cores: int) -> None:
    """An H100 has 132 and an H20 78; more programs than that would wait for their turn, with tiles of their own."""
    device = AbstractDevice(device_kind="NVIDIA H20", num_cores=cores, platform="gpu")
    q = jax.ShapeDtypeStruct((2, 8192, 8, 128), jnp.bfloat16)
    rows = jax.ShapeDtypeStruct((2, 8192), jnp.int32)
    asked = lambda q, rows: KERNELS.forward(Settings(Mask(), 0.1), q, q, q, MaskInputs(rows, rows, rows, rows, None))
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        program = str(jax.make_jaxpr(asked)(q, rows))
    assert f"grid=({cores},)" in program


@pytest.mark.long
def test_values_are_loaded_over_once_the_product_that_reads_them_is_over(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of four blocks in two places; a consumer that gives one back while its product is under way is a race."""
    case = hopper(Mask(causal=False), 580, 1, 1, results="inputs", queries=slice(0, 64))
    tokens = tokens_of(case)
    inputs = cases.random_inputs(case, tokens)
    beside = matmuls.Simulated.beside

    def attended() -> jax.Array:
        options, named = case.settings, cases.mask_inputs(tokens)
        out, _ = jax.jit(lambda *x: KERNELS.forward(options, *x, named))(inputs["q"], inputs["k"], inputs["v"])
        return jax.block_until_ready(out)

    q, k, v = (np.asarray(inputs[name], np.float64)[0, :, 0] for name in "qkv")
    scores = q @ k.T * 0.125
    weights = np.exp(scores - scores.max(1, keepdims=True))
    wanted = weights / weights.sum(1, keepdims=True) @ v
    np.testing.assert_allclose(np.asarray(attended(), np.float64)[0, :, 0], wanted, atol=4e-3)
    assert REPORTED not in capfd.readouterr().out

    def early(running: Any, total: Any, pair: matmuls.InFlight, scratch: Any) -> Any:
        changed = pair._replace(issued=lambda: (pair.issued(), pair.done(), None)[-1], done=lambda: None)
        return beside(running, total, changed, scratch)

    monkeypatch.setattr(matmuls.Simulated, "beside", staticmethod(early))
    attended()
    assert REPORTED in capfd.readouterr().out


@pytest.mark.long
def test_parts_of_the_keys_merged_by_their_log_sum_exp_are_attention_over_all(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As a step of a ring asks for them. Queries before the second part see none of it: its output is 0 there and its
    log-sum-exp -inf."""
    case, cut = hopper(Mask(segmented=True), 150, 1, 1), 80
    tokens = tokens_of(case)
    inputs = cases.random_inputs(case, tokens)
    picks = [np.arange(cut), np.arange(cut, 150)]
    found, [(first, _), (second, second_lse)] = cases.merged_parts(KERNELS, case, tokens, inputs, picks)
    assert first.dtype == second.dtype == jnp.float32, "what is merged is not rounded before"
    assert bool((second_lse[:, :cut] == -jnp.inf).all()) and not second[:, :cut].any()
    cases.check_errors(found, case, tokens, inputs, cases.expected(case, tokens, inputs))
    assert REPORTED not in capfd.readouterr().out
