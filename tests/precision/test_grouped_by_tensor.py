"""Products of routed experts in FP8 with a scale for a tensor or a row, against float64 products of such numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxpar.mesh.build import mapped
from jaxpar.precision.grouped import grouped_products, scales_of_experts
from jaxpar.precision.matmul import GroupScaling, Scales
from jaxpar.precision.recipe import E4M3, E5M2, LARGEST, Recipe
from jaxpar.runtime.passes import ALWAYS_SAVED
from tests.precision.test_amax import known
from tests.precision.test_grouped import OUTPUTS, ROWS, SIZES, apart, drawn
from tests.same_bits import assert_same_bits
from tests.traced import mesh_of

DELAYED = np.float32([4.0, 0.5, 2.0**-9])
"""Scales of rows, matrices and gradients: most rows are too small for them, and some numbers too large."""
OPTIONS: dict[str, Any] = {"implementation": "xla", "expected": ROWS}


def own_scales(x: np.ndarray, form: str, axes: tuple[int, ...] | None) -> np.ndarray:
    """The least powers of two by which numbers fit, of all or over `axes`."""
    most = np.abs(x).max(axes, keepdims=True)
    return np.exp2(np.ceil(np.log2(np.where(most > 0, most, LARGEST[form]) / LARGEST[form])))


def rounded(x: np.ndarray, scale: Any, form: str) -> np.ndarray:
    codes = np.clip(x / scale, -LARGEST[form], LARGEST[form]).astype(np.float32)
    return codes.astype(getattr(ml_dtypes, form)).astype(np.float64) * scale


def expected_of(delayed: bool) -> tuple[np.ndarray, ...]:
    """(output, gradients of rows and of matrices) in float64."""
    x, w, dy = drawn()
    of_x, of_w, of_dy = DELAYED if delayed else (
        own_scales(x, E4M3, (1,)), own_scales(w, E4M3, None), own_scales(dy, E5M2, (1,))
    )  # fmt: skip
    x, w, dy = rounded(x, of_x, E4M3), rounded(w, of_w, E4M3), rounded(dy, of_dy, E5M2)
    y, dx, dw = np.zeros((ROWS, OUTPUTS)), np.zeros(x.shape), np.zeros(w.shape)
    for expert, (end, size) in enumerate(zip(np.cumsum(SIZES), SIZES, strict=True)):
        own = slice(end - size, end)
        y[own], dx[own], dw[expert] = x[own] @ w[expert], dy[own] @ w[expert].T, x[own].T @ dy[own]
    return y, dx, dw


def found_by(recipe: Recipe, exact: bool | None = None, quantized: bool = False) -> tuple[np.ndarray, ...]:
    """The same and largest magnitudes, with no number behind the experts."""
    x, w, dy = (jnp.asarray(a, jnp.float32) for a in drawn())
    x, dy = (a.at[sum(SIZES) :].set(jnp.nan) for a in (x, dy))

    @jax.jit
    def run(x: jax.Array, w: jax.Array, dy: jax.Array) -> list[jax.Array]:
        branch = None if exact is None else jnp.bool_(exact)
        scales = known(jnp.asarray(DELAYED)) if recipe.from_history else Scales()
        of_layer = scales_of_experts([w], GroupScaling(recipe, scales=scales))
        if quantized:
            w = (jnp.clip(w / of_layer.weights[0], -448, 448)).astype(E4M3).astype(jnp.float32)

        def product(x: jax.Array, w: jax.Array, zeros: jax.Array) -> jax.Array:
            own = GroupScaling(recipe, branch, of_layer, zeros, quantized)
            return grouped_products(x, [w], jnp.array(SIZES), own, inward=True, **OPTIONS)[0]

        y, pull = jax.vjp(product, x, w, jnp.zeros(3))
        return jax.tree.leaves((y, *pull(dy)))

    return tuple(np.asarray(a, np.float64) for a in run(x, w, dy))


@pytest.mark.parametrize("delayed", [False, True])
def test_products_of_experts_are_those_of_the_numbers_that_the_codes_stand_for(delayed: bool):
    """Also where the matrices are codes already, of which the gradients are those of the matrices themselves."""
    recipe, wanted = Recipe(from_history=delayed), expected_of(delayed)
    for quantized in (False, True):
        for have, own in zip(found_by(recipe, quantized=quantized), wanted, strict=False):
            assert apart(have, own) < 2e-6


def test_what_is_seen_is_the_largest_magnitude_of_the_rows_that_experts_have():
    """Rows behind the last expert hold no numbers here. Codes of matrices were seen where they were made."""
    x, w, dy = drawn()
    wanted = [np.abs(a).max() for a in (x[: sum(SIZES)], w, dy[: sum(SIZES)])]
    np.testing.assert_array_equal(found_by(Recipe())[3], np.float32(wanted))
    recipe = Recipe(from_history=True)
    np.testing.assert_array_equal(found_by(recipe)[3], np.float32(wanted))
    np.testing.assert_array_equal(found_by(recipe, exact=False)[3], np.float32(wanted))
    np.testing.assert_array_equal(found_by(recipe, quantized=True)[3], np.float32(wanted) * [1, 0, 1])
    assert not found_by(recipe, exact=True)[3].any()


def test_a_recomputed_product_has_the_scales_and_the_bits_of_the_first():
    """A policy that keeps nothing but scales: gradients are the same bits, and no magnitude is looked for again."""
    x, w, _ = (jnp.asarray(a, jnp.float32) for a in drawn())
    recipe = Recipe()

    def block(x: jax.Array, w: jax.Array) -> jax.Array:
        own = GroupScaling(recipe, scales=scales_of_experts([w], GroupScaling(recipe)))
        (y,) = grouped_products(jnp.sin(x), [w], jnp.array(SIZES), own, inward=False, **OPTIONS)
        return jnp.sum(y * y)

    policy = jax.checkpoint_policies.save_only_these_names(ALWAYS_SAVED)
    plain, again = (jax.value_and_grad(own, (0, 1)) for own in (block, jax.checkpoint(block, policy=policy)))
    assert_same_bits(jax.jit(again)(x, w), jax.jit(plain)(x, w))
    searches = [str(jax.make_jaxpr(own)(x, w)).count("reduce_max") for own in (plain, again)]
    assert searches == [3, 3], "of the rows, of the matrices, of the gradient's rows"


@pytest.mark.parametrize("inward", [True, False])
def test_scales_of_split_experts_are_those_of_the_whole(inward: bool):
    """Experts and their width are split, and each product of a row with a column is that of the whole bit for bit. One
    half of a row has numbers of a few bits that are too small to be codes with a scale by the other half, and would be
    codes by their own, so that another scale gives other numbers; no order of adding rounds their sums. One number of
    an expert is so large that those of all experts are too small."""
    draw = np.random.default_rng(0)
    few = lambda *shape: draw.integers(-3, 4, size=shape).astype(np.float32)
    x, w, dy = few(64, 32) * 2.0**-17, few(4, 32, 32), few(64, 32) * 2.0**-31
    for rows in (x, dy):
        rows[:, 16:] = 0
        rows[:, 20] = 3.0
        rows *= 2.0 ** draw.integers(-9, 9, size=(64, 1))
    w[3, 31, 31] = 2.0**19
    sizes, recipe = np.int32([16, 16, 16, 16]), Recipe()

    def run(x: jax.Array, w: jax.Array, dy: jax.Array, sizes: jax.Array) -> tuple[jax.Array, ...]:
        def product(x: jax.Array, w: jax.Array) -> jax.Array:
            own = GroupScaling(recipe, scales=scales_of_experts([w], GroupScaling(recipe)))
            (y,) = grouped_products(x, [w], sizes, own, inward=inward, **OPTIONS)
            return y if inward else jax.lax.psum(y, "tensor")

        y, pull = jax.vjp(product, x, w)
        return y, *pull(dy)

    rows, parts = PartitionSpec("expert"), PartitionSpec("expert", "tensor")
    matrix = PartitionSpec("expert", None, "tensor") if inward else parts
    inputs, outputs = (rows, parts) if inward else (parts, rows)
    found = [
        jax.jit(mapped(run, mesh_of(**axes), "float32", (inputs, matrix, outputs, rows), (outputs, inputs, matrix)))(
            x, w, dy, sizes
        )
        for axes in ({}, {"expert": 2, "tensor": 2})
    ]
    jax.tree.map(np.testing.assert_array_equal, *found)
