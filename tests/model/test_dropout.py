"""Dropout is a function of the global token: of its example, index and place in the model, and of nothing else."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.layers.dropout import dropout
from tests.traced import mesh_of

ROWS, SEQUENCE, EMBED, RATE = 4, 16, 64, 0.3
EXAMPLES = np.arange(100, 100 + ROWS, dtype=np.int32)
SLOTS = np.tile(np.arange(SEQUENCE, dtype=np.int32), (ROWS, 1))
ONES = np.ones((ROWS, SEQUENCE, EMBED), np.float32)


def dropped(
    x: Any = ONES, examples: Any = EXAMPLES, indices: Any = SLOTS, *, seed: int = 0, site: int = 3
) -> jax.Array:
    return dropout(x, RATE, seed=seed, site=site, examples=examples, indices=indices)


def test_about_the_rate_is_zeroed_and_the_rest_scaled_so_that_the_mean_stays():
    found = np.asarray(dropped())
    zeroed = (found == 0).mean()
    assert abs(zeroed - RATE) < 4 * np.sqrt(RATE * (1 - RATE) / found.size), "four standard deviations"
    np.testing.assert_allclose(found[found != 0], 1 / (1 - RATE), rtol=1e-6)


def test_nothing_happens_at_rate_zero():
    np.testing.assert_array_equal(dropout(ONES, 0.0, seed=0, site=0, examples=EXAMPLES, indices=SLOTS), ONES)


@pytest.mark.parametrize(
    "layout",
    [
        ({"fsdp": 4}, P("fsdp"), P("fsdp")),
        ({"context": 2, "tensor": 4}, P(None), P(None, ("context", "tensor"))),
        ({"replica": 2, "context": 2, "tensor": 2}, P("replica"), P("replica", ("context", "tensor"))),
    ],
    ids=["rows", "sequence", "both"],
)
def test_the_mask_is_the_same_on_every_layout(layout: tuple[dict[str, int], P, P]):
    sizes, rows, tokens = layout
    split = jax.shard_map(dropped, mesh=mesh_of(**sizes), in_specs=(tokens, rows, tokens), out_specs=tokens)
    np.testing.assert_array_equal(jax.jit(split)(ONES, EXAMPLES, SLOTS), jax.jit(dropped)(ONES, EXAMPLES, SLOTS))


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"site": 4}, {"examples": EXAMPLES + ROWS}], ids=["seed", "site", "step"]
)
def test_another_seed_site_or_step_has_another_mask(change: dict[str, Any]):
    """A step later the rows have other examples. Two masks that are independent agree by chance alone."""
    agree = (np.asarray(dropped()) == np.asarray(dropped(**change))).mean()
    chance = RATE**2 + (1 - RATE) ** 2
    assert abs(agree - chance) < 4 * np.sqrt(chance * (1 - chance) / ONES.size)


def test_tokens_of_a_row_and_rows_have_masks_of_their_own():
    masks = (np.asarray(dropped()) != 0).reshape(ROWS * SEQUENCE, EMBED)
    assert len(np.unique(masks, axis=0)) == ROWS * SEQUENCE


def test_the_gradient_is_masked_like_the_forward():
    y, pullback = jax.vjp(dropped, jnp.asarray(ONES))
    np.testing.assert_array_equal(pullback(jnp.asarray(ONES))[0], y)


def test_the_dtype_stays():
    assert dropped(ONES.astype(jnp.bfloat16)).dtype == jnp.bfloat16
