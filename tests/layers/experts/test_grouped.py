"""Grouped products against float64, for any group sizes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.layers.experts.grouped import TILE, grouped_matmul


@pytest.mark.parametrize("sizes", [[0, 0, 0], [1, 0, 5], [130, 3, 128], [300, 0, 0], [0, 0, 300], [17, 283, 0]])
def test_products_and_gradients_equal_float64(sizes: list[int]):
    draw = np.random.default_rng(0)
    rows, weights, dy = (draw.standard_normal(shape) for shape in ((300, 6), (3, 6, 5), (300, 5)))
    group = np.repeat([*range(3), 3], [*sizes, 300 - sum(sizes)])
    matrices = np.concatenate([weights, np.zeros((1, 6, 5))])[group]
    wanted = np.einsum("mk,mkn->mn", rows, matrices)
    used = dy * (group < 3)[:, None]
    of_rows = np.einsum("mn,mkn->mk", used, matrices)
    of_weights = np.stack([rows[group == g].T @ used[group == g] for g in range(3)])
    product = lambda rows, weights: grouped_matmul(rows, weights, jnp.asarray(sizes))
    found, pullback = jax.vjp(jax.jit(product), jnp.float32(rows), jnp.float32(weights))
    for ours, theirs in zip((found, *pullback(jnp.float32(dy))), (wanted, of_rows, of_weights), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_the_work_is_that_of_the_groups():
    """The loop runs as many tiles as groups fill: not a tile for each expert and row."""
    sizes = jnp.asarray([1, TILE, TILE + 1, 0])
    program = jax.make_jaxpr(lambda r, w: grouped_matmul(r, w, sizes))(jnp.ones((4096, 8)), jnp.ones((4, 8, 8)))
    text = str(program)
    assert "while" in text and f"f32[{TILE},8]" in text
    assert "f32[4,4096" not in text
