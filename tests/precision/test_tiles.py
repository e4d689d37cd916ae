"""Matmuls in FP8 with scales of tiles: codes, the three products against float64, and whole steps on layouts."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.mesh.build import mapped
from jaxpar.precision.dense import products
from jaxpar.precision.matmul import GroupScaling
from jaxpar.precision.recipe import E4M3, E5M2, LARGEST, TILES, Recipe
from jaxpar.precision.scale import quantize_tiles
from pallas_kernels.tiled_matmul.reference import numbers
from tests.precision.test_matmul import STEP
from tests.small_run import small
from tests.traced import mesh_of
from tests.training.parity.one_device import assert_near_one_device, changed_by_quantizing, on_one_device

RECIPES = TILES


def reference_scales(x: np.ndarray, tile: tuple[int, int], form: str) -> np.ndarray:
    """Of each number, the least power of two by which its tile fits, in float64."""
    found = np.empty(x.shape)
    for row in range(0, x.shape[0], tile[0]):
        for column in range(0, x.shape[1], tile[1]):
            place = np.s_[row : row + tile[0], column : column + tile[1]]
            found[place] = 2.0 ** np.ceil(np.log2(np.abs(x[place]).max() / LARGEST[form]))
    return found


def error_of(x: np.ndarray, tile: tuple[int, int], form: str) -> np.ndarray:
    """The most by which the code of each number is off: a share of it, or half of the format's smallest number."""
    least = {E4M3: 2.0**-10, E5M2: 2.0**-17}
    return np.maximum(np.abs(x) * STEP[form], least[form] * reference_scales(x, tile, form))


@pytest.mark.parametrize("tile", [(1, 128), (128, 1), (128, 128), (1, 32)])
@pytest.mark.parametrize("form", [E4M3, E5M2])
def test_codes_have_the_scale_of_their_tile_and_bfloat16_holds_what_they_stand_for(tile: tuple[int, int], form: str):
    draw = np.random.default_rng(0)
    x = (draw.normal(size=(256, 256)) * np.exp2(draw.integers(-20, 20, (256, 256)))).astype(np.float32)
    codes = quantize_tiles(jnp.asarray(x), tile, form)
    wanted = reference_scales(x, tile, form)
    np.testing.assert_array_equal(np.kron(codes.scales, np.ones(tile)), wanted)
    exact = np.asarray(codes.values, np.float64) * wanted
    np.testing.assert_array_equal(np.asarray(numbers(*codes), np.float64), exact)
    assert (np.abs(exact - x) <= error_of(x, tile, form)).all()


def test_what_is_not_finite_is_not_hidden():
    x = jnp.ones((1, 256)).at[0, 130].set(jnp.inf)
    found = np.isnan(numbers(*quantize_tiles(x, (1, 128), E4M3)).astype(jnp.float32))
    np.testing.assert_array_equal(found[0], np.arange(256) >= 128)


@pytest.mark.parametrize("name", RECIPES)
def test_each_product_is_within_the_bound_of_its_tiles(name: str):
    """Output, and gradients of the input and of the weight, against float64, where sums do not cancel. Outliers in a
    channel of the input, a number of the weight and one of the gradient do not reach other tiles."""
    tiles, draw = RECIPES[name], np.random.default_rng(1)
    x, w, dy = (np.abs(draw.normal(size=size)) for size in ((2, 128, 256), (256, 2, 128), (2, 128, 256)))
    x[0, :, 0], w[-1, -1, -1], dy[1, 3, 200] = 2.0**18, 2.0**12, 2.0**20
    scaling = GroupScaling(Recipe(tiles=tiles))
    cast = lambda a: jnp.asarray(a, jnp.float32)
    y, pullback = jax.vjp(lambda x, w: products(x, [w], scaling, gathers=False)[0], cast(x), cast(w))
    dx, dw = pullback(cast(dy.reshape(2, 128, 2, 128)))
    rows, matrix, dys = x.reshape(256, 256), w.reshape(256, 256), dy.reshape(256, 256)
    along, square = (1, tiles.size), (tiles.size, tiles.size)
    of_weight = square if tiles.square else along
    for found, a, b, forms, tile in (
        (y, rows, matrix.T, (E4M3, E4M3), of_weight),
        (dx, dys, matrix, (E4M3, E4M3), of_weight),
        (dw, rows.T, dys.T, (E4M3, E4M3), along),
    ):
        errors = error_of(a, along, forms[0]), error_of(b, tile, forms[1])
        limit = errors[0] @ np.abs(b.T) + np.abs(a) @ errors[1].T + errors[0] @ errors[1].T
        error = np.abs(np.asarray(found, np.float64).reshape(256, 256) - a @ b.T)
        rounding = 256 * 2.0**-24 * (np.abs(a) @ np.abs(b.T))
        assert (error <= limit + 2 * rounding).all(), (error / limit).max()
        assert (error > limit / 1000).any(), "it was not quantized"


@pytest.mark.parametrize("tile", [(1, 128), (128, 1), (128, 128)])
def test_a_split_tensor_has_the_codes_and_scales_of_the_whole(tile: tuple[int, int]):
    x = np.random.default_rng(2).normal(size=(4, 512, 256)).astype(np.float32)
    split = PartitionSpec(("replica", "fsdp"), "context", "tensor")
    codes = lambda x: quantize_tiles(x, tile, E4M3)
    mesh = mesh_of(fsdp=2, context=2, tensor=2)
    found = jax.jit(mapped(codes, mesh, "float32", split, split))(x)
    for own, whole in zip(found, quantize_tiles(jnp.asarray(x), tile, E4M3), strict=True):
        np.testing.assert_array_equal(np.asarray(own, np.float32), np.asarray(whole, np.float32))


# ---- whole steps

LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "tensor and shards, recomputed": {
        "parallel": {"fsdp": 2, "tensor": 2, "microbatches": 2},
        "memory": {"remat": "full"},
    },
    "split backward": {"parallel": {"pipe": 2, "microbatches": 2, "schedule": "zb-h1"}},
    "16 rows of a matrix on each rank": {"parallel": {"fsdp": 8, "microbatches": 1}},
    "pipeline with an exception, and shards": {"parallel": {"pipe": 2, "fsdp": 2, "microbatches": 2}},
    "mxfp8, tensor and shards": {"parallel": {"fsdp": 2, "tensor": 2, "microbatches": 2}},
}


MODEL = {"layers": 2, "embed": 128, "mlp": 256, "heads": 4, "kv_heads": 4, "head_dim": 64}
DATA = {"sequence_length": 256, "batch_size": 8}
EXCEPT = MatmulOptions(exclude=("head", "router"), first_layers=1, last_layers=0)


def config_of(sections: dict[str, dict[str, Any]], recipe: str = "fp8_block") -> Any:
    precision = {"matmul": recipe, "matmul_options": EXCEPT}
    return small(**sections | {"model": MODEL, "precision": precision, "data": DATA})


ONE_DEVICE = {"parallel": {"microbatches": 2}}


@pytest.mark.matrix(quick=("fp8_block",), ci=1)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_step_is_near_that_of_products_which_are_not_quantized(recipe: str):
    """Gradients change by 6%; the tolerance is twice that. Matrices that are multiplied as codes without their scales
    change them by 140%."""
    alone = config_of(ONE_DEVICE, recipe)
    exact = replace(alone, precision=replace(alone.precision, matmul=None, matmul_options=MatmulOptions()))
    assert on_one_device(alone)[0] == pytest.approx(on_one_device(exact)[0], rel=0.01)
    assert 0.01 <= changed_by_quantizing(alone) <= 0.12


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_give_the_numbers_of_one_device(name: str):
    """Within a third of what quantizing changes in this model, as with scales of tensors (`test_matmul.py`)."""
    recipe = "mxfp8" if name.startswith("mxfp8") else "fp8_block"
    assert_near_one_device(config_of(LAYOUTS[name], recipe), config_of(ONE_DEVICE, recipe), 0.01)
