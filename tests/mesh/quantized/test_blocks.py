"""Block codes: how far off a number may come back, that rounding of gradients has no bias, and the bytes of a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.mesh.quantized.blocks import BLOCK, LARGEST, decode, encode, row_bytes

WIRES = ("int8", "int4", "float8_e4m3fn")
ROWS = np.random.default_rng(0).standard_normal((3, 2 * BLOCK + 31)).astype(np.float32)
ROWS[1] *= 1e-6
ROWS[2, :BLOCK] = 0


def steps_of(rows: np.ndarray, wire: str) -> np.ndarray:
    """The scale of each element's block: its largest magnitude over the largest code."""
    padded = np.pad(np.abs(rows), ((0, 0), (0, -rows.shape[1] % BLOCK))).reshape(len(rows), -1, BLOCK)
    scales = padded.max(axis=2, keepdims=True) / LARGEST[wire]
    return np.broadcast_to(scales, padded.shape).reshape(len(rows), -1)[:, : rows.shape[1]]


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("wire", WIRES)
def test_an_element_comes_back_within_its_blocks_step(wire: str, stochastic: bool):
    """Half a step of integers to the nearest, a step of those rounded either way; a scale is at most 1/128 larger.

    A step between powers of two is as large as the lower one, and the lowest is 1/64 of the scale."""
    sent = jax.jit(lambda x: encode(x, wire, stochastic=stochastic))(ROWS)
    assert sent.dtype == jnp.uint8 and sent.shape == (3, row_bytes(ROWS.shape[1], wire))
    found = np.asarray(decode(sent, ROWS.shape[1], wire))
    if wire == "float8_e4m3fn":  # three bits of mantissa, and steps of 2^-9 below 2^-6
        limit = np.maximum(np.abs(ROWS) * 2.0**-4, steps_of(ROWS, wire) * 2.0**-10)
    elif wire == "int4":
        limit = np.maximum(np.abs(ROWS), steps_of(ROWS, wire) / 64) * (1.0 if stochastic else 0.5)
    else:
        limit = steps_of(ROWS, wire) * (1.0 if stochastic else 0.5)
    assert (np.abs(found - ROWS) <= limit * (1 + 2.0**-6)).all()
    assert not found[2, :BLOCK].any(), "a block of zeros"


@pytest.mark.parametrize("wire", ["int8", "int4"])
def test_rounded_gradients_are_right_on_average(wire: str):
    """The mean error of n draws falls as 1 / sqrt(n); rounding to the nearest would leave a share of a step."""
    draws = 4000
    step = 1 / 127 if wire == "int8" else 1 / 64
    value = np.float32(0.3 * step)
    rows = np.full((draws, 64), value) * (1 + np.random.default_rng(1).uniform(0, 1e-3, (draws, 64)))
    rows[:, 0] = 1
    found = np.asarray(decode(encode(jnp.asarray(rows, jnp.float32), wire, stochastic=True), 64, wire))
    error = (found[:, 1:] - rows[:, 1:]).mean() / step
    spread = np.sqrt(0.3 * 0.7 / (draws * 63))
    assert abs(error) < 4 * spread + 0.3 * 2.0**-7, "the second term is what the rounding of scales adds"
    nearest = np.asarray(decode(encode(jnp.asarray(rows, jnp.float32), wire), 64, wire))
    assert not nearest[:, 1:].any(), "which the nearest code would lose"


@pytest.mark.parametrize(("wire", "each"), [("int8", 1), ("int4", 0.5), ("float8_e4m3fn", 1)])
def test_a_row_has_the_bytes_of_its_codes_and_two_for_each_block(wire: str, each: float):
    assert row_bytes(1024, wire) == 1024 * each + 2 * 4
    assert row_bytes(1025, wire) == np.ceil(1025 * each) + 2 * 5
