"""Products of routed experts in FP8 with scales of tiles, against float64 products of numbers quantized here."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxpar.precision.grouped import grouped_products, tile_aligned_places
from jaxpar.precision.matmul import GroupScaling
from jaxpar.precision.recipe import E4M3, LARGEST, TILES, Recipe, Tiles
from tests.gpu_compile import in_child
from tests.precision.test_tiles import reference_scales

ROWS, INPUTS, OUTPUTS = 400, 256, 384
SIZES = (3, 0, 130, 256, 1)
"""Of five experts: less than a tile, none, tiles that are not full, whole tiles; 10 rows are left."""


def numbers_of(x: np.ndarray, tile: tuple[int, int], form: str) -> np.ndarray:
    """What the codes of a matrix stand for, in float64; rows of a tile that is not full are those that there are."""
    scales = reference_scales(x, tile, form)
    codes = np.clip(x / scales, -LARGEST[form], LARGEST[form]).astype(np.float32)
    return codes.astype(getattr(ml_dtypes, form)).astype(np.float64) * scales


def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, matrices and gradients whose experts differ in size by powers of ten, and have outliers."""
    draw = np.random.default_rng(3)
    expert = np.repeat(np.arange(5), SIZES)
    x, w, dy = (draw.normal(size=size) for size in ((ROWS, INPUTS), (5, INPUTS, OUTPUTS), (ROWS, OUTPUTS)))
    size = 10.0 ** np.array([-4, 0, 3, -2, 6])
    x[: len(expert)] *= size[expert][:, None]
    dy[: len(expert)] *= size[::-1][expert][:, None]
    w *= size[[2, 1, 0, 4, 3]][:, None, None]
    x[5, 7], dy[200, 9], w[2, 3, 4] = 1e5, 1e4, 1e3
    return tuple(np.float32(a).astype(np.float64) for a in (x, w, dy))


def found_by(recipe: Recipe, exact: bool | None = None) -> tuple[np.ndarray, ...]:
    """(output, gradients of rows and of matrices), with no number behind the experts."""
    x, w, dy = (jnp.asarray(a, jnp.float32) for a in drawn())
    x, dy = (a.at[sum(SIZES) :].set(jnp.nan) for a in (x, dy))

    @jax.jit
    def run(x: jax.Array, w: jax.Array, dy: jax.Array) -> list[jax.Array]:
        def product(x: jax.Array, w: jax.Array) -> jax.Array:
            scaling = GroupScaling(recipe, exact=None if exact is None else jnp.bool_(exact))
            options = {"implementation": "xla", "expected": ROWS}
            return grouped_products(x, [w], jnp.array(SIZES), scaling, inward=True, **options)[0]

        y, pull = jax.vjp(product, x, w)
        return jax.tree.leaves((y, *pull(dy)))

    return tuple(np.asarray(a, np.float64) for a in run(x, w, dy))


def expected_of(tiles: Tiles) -> tuple[np.ndarray, ...]:
    """The same in float64."""
    x, w, dy = drawn()
    y, dx, dw = np.zeros((ROWS, OUTPUTS)), np.zeros((ROWS, INPUTS)), np.zeros(w.shape)
    along, down, square = (1, tiles.size), (tiles.size, 1), (tiles.size, tiles.size)
    of_inputs, of_outputs = (square, square) if tiles.square else (down, along)
    for expert, (end, size) in enumerate(zip(np.cumsum(SIZES), SIZES, strict=True)):
        own = slice(end - size, end)
        y[own] = numbers_of(x[own], along, E4M3) @ numbers_of(w[expert], of_inputs, E4M3)
        dx[own] = numbers_of(dy[own], along, E4M3) @ numbers_of(w[expert], of_outputs, E4M3).T
        if size:
            dw[expert] = numbers_of(x[own], down, E4M3).T @ numbers_of(dy[own], down, E4M3)
    return y, dx, dw


def apart(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference of a row, or of the matrix of an expert, relative to its largest number."""
    axes = tuple(range(1, wanted.ndim))
    largest = np.abs(wanted).max(axes, keepdims=True)
    return float((np.abs(found - wanted) / np.maximum(largest, 1e-30)).max())


@pytest.mark.parametrize("name", TILES)
def test_products_of_experts_are_those_of_the_numbers_that_the_codes_stand_for(name: str):
    """No expert's tiles have numbers of another, so what is quantized here expert by expert has the same codes."""
    found = found_by(Recipe(tiles=TILES[name]))
    for have, wanted in zip(found, expected_of(TILES[name]), strict=True):
        assert apart(have, wanted) < 2e-6


def test_an_exception_among_layers_that_share_a_program_is_not_quantized():
    recipe = Recipe(tiles=TILES["fp8_block"])
    x, w, _ = drawn()
    ends = np.cumsum(SIZES)
    wanted = np.concatenate([x[end - SIZES[e] : end] @ w[e] for e, end in enumerate(ends)])
    exact, quantized, always = (found_by(recipe, branch)[0] for branch in (True, False, None))
    assert apart(exact[: len(wanted)], wanted) < 2e-6 < 1e-3 < apart(quantized[: len(wanted)], wanted)
    np.testing.assert_array_equal(quantized, always)


@pytest.mark.parametrize("sizes", [(0, 5, 0), (128, 256, 16), (1, 1, 1), (390, 0, 50)])
def test_each_expert_begins_a_tile_and_no_row_is_lost(sizes: tuple[int, ...]):
    """The last sizes are of more rows than there are: the last expert is cut off."""
    places = tile_aligned_places(jnp.array(sizes), ROWS, 128)
    own = np.asarray(places.sizes)
    kept = np.diff(np.minimum(np.cumsum((0, *sizes)), ROWS))
    np.testing.assert_array_equal(own, -(-kept // 128) * 128)
    assert places.row.shape[0] % 128 == 0 and own.sum() <= places.row.shape[0]
    rows = np.asarray(places.row)
    np.testing.assert_array_equal(rows[rows >= 0], np.arange(kept.sum()))
    for begin, first, number in zip(np.cumsum(own) - own, np.cumsum(kept) - kept, kept, strict=True):
        np.testing.assert_array_equal(rows[begin : begin + number], first + np.arange(number))


@pytest.mark.long
def test_codes_for_the_gradient_of_matrices_are_written_once_in_the_order_that_the_kernel_reads():
    """Two fusions, each of which gathers, quantizes and transposes within tiles; no other pass over codes."""
    [*passes] = in_child("tests.precision.gpu_grouped:passes_over_codes", 4096, 4, 1024, 768)
    assert len(passes) == 2 and all("transpose_fusion" in name for name in passes), passes
