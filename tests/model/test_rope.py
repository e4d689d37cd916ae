"""Rotary embeddings: frequencies by the published formulas, and rotations that see distances alone."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config import ModelConfig
from jaxpar.config.counting import rotary_dim
from jaxpar.config.mappings.rope import RopeConfig
from jaxpar.layers.rope import frequencies, rotary_magnitude, rotary_tables, rotate

LLAMA3 = ModelConfig(
    rope=RopeConfig(
        base=500000.0, scaling="llama3", factor=8.0, original_length=8192, low_frequency=1.0, high_frequency=4.0
    )
)


def published(width: int) -> np.ndarray:
    """Llama 3.1's own code, `apply_scaling` of its `model.py`, with the numbers that it has there."""
    scaled = []
    for frequency in 1.0 / (500000.0 ** (np.arange(0, width, 2) / width)):
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4:
            scaled.append(frequency)
        elif wavelength > 8192 / 1:
            scaled.append(frequency / 8)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            scaled.append((1 - smooth) * frequency / 8 + smooth * frequency)
    return np.array(scaled)


def test_llama3_scaling_is_that_of_llama():
    found = frequencies(LLAMA3, 128)
    np.testing.assert_allclose(found, published(128), rtol=1e-12)
    plain = 500000.0 ** -(np.arange(64) / 64)
    assert found[0] == plain[0] and found[-1] == pytest.approx(plain[-1] / 8)
    assert np.sum((found != plain) & ~np.isclose(found, plain / 8)) >= 4, "some frequencies are interpolated"


def test_linear_scaling_divides_every_frequency():
    plain = frequencies(ModelConfig(rope=RopeConfig(base=100.0)), 8)
    np.testing.assert_allclose(plain, [1, 100**-0.25, 0.1, 100**-0.75], rtol=1e-12)
    stretched = frequencies(ModelConfig(rope=RopeConfig(base=100.0, scaling="linear", factor=4.0)), 8)
    np.testing.assert_allclose(stretched, plain / 4, rtol=1e-12)


YARN = {
    "gpt-oss": (
        {"base": 150000.0, "factor": 32.0, "original_length": 4096, "truncate": False}, 64,
        1.3465735902799727, {0: 1.0, 8: 0.05081327, 9: 0.0317057, 14: 0.002093793, 17: 1.293187e-4, 18: 3.830881e-05},
    ),
    "DeepSeek": (
        {"factor": 40.0, "original_length": 4096, "mscale": 0.707, "mscale_all_dim": 1.0}, 64,
        0.9210423553163399, {10: 0.05623413, 11: 0.03900693, 16: 0.0055, 22: 1.778279e-4, 23: 3.333803e-05},
    ),
    "factor and betas": (
        {
            "factor": 4.0, "original_length": 32, "attention_factor": 1.5, "beta_fast": 3.0,
            "beta_slow": 0.5,
        }, 16, 1.5, {0: 1.0, 1: 0.2371708, 2: 0.05, 3: 0.007905695, 7: 7.905695e-05},
    ),
    "ends below 0": (
        {"base": 100.0, "factor": 4.0, "original_length": 32}, 16, 1.138629436111989,
        {0: 1.0, 1: 0.421756, 2: 0.1581139, 3: 0.04445698, 7: 0.004445699},
    ),
}  # fmt: skip
"""Settings, width of a head, and what transformers 5.23 computes of them in float32: the factor of cosines and sines,
and some frequencies by the number of their pair."""


@pytest.mark.parametrize("name", YARN)
def test_yarn_scaling_is_that_of_transformers(name: str):
    options, width, magnitude, wanted = YARN[name]
    model = ModelConfig(rope=RopeConfig(scaling="yarn", **options))
    found = frequencies(model, width)
    np.testing.assert_allclose(found[list(wanted)], list(wanted.values()), rtol=1e-6)
    assert rotary_magnitude(model) == pytest.approx(magnitude, rel=1e-12)
    cos, _ = rotary_tables(jnp.zeros((1, 1), jnp.int32), found, rotary_magnitude(model))
    np.testing.assert_allclose(cos, magnitude, rtol=1e-6)


def rotated(x: np.ndarray, positions: list[int]) -> np.ndarray:
    """`x` [seq, width] at `positions`."""
    cos, sin = rotary_tables(
        jnp.asarray([positions]), frequencies(ModelConfig(rope=RopeConfig(base=100.0)), x.shape[-1])
    )
    return np.asarray(rotate(jnp.asarray(x, jnp.float32)[None, :, None], cos, sin)[0, :, 0])


def test_a_rotation_turns_the_pairs_i_and_i_plus_half():
    x = np.random.default_rng(0).standard_normal((3, 8))
    positions = [0, 7, 1000]
    found = rotated(x, positions)
    angle = np.array(positions)[:, None] * 100.0 ** -(np.arange(4) / 4)
    turned = (x[:, :4] + 1j * x[:, 4:]) * np.exp(1j * angle)
    np.testing.assert_allclose(found, np.concatenate([turned.real, turned.imag], axis=1), rtol=1e-4, atol=1e-4)


def test_of_a_part_of_each_head_the_first_dims_rotate_and_the_others_stay():
    """As Phi-3 in transformers: the angles are those of a head as wide as the part."""
    x = np.random.default_rng(2).standard_normal((3, 8)).astype(np.float32)
    model = ModelConfig(rope=RopeConfig(base=100.0, partial=0.75), head_dim=8)
    assert rotary_dim(model) == 6
    cos, sin = rotary_tables(jnp.asarray([[0, 7, 1000]]), frequencies(model, rotary_dim(model)))
    found = np.asarray(rotate(jnp.asarray(x)[None, :, None], cos, sin)[0, :, 0])
    np.testing.assert_array_equal(found[:, 6:], x[:, 6:])
    np.testing.assert_array_equal(found[:, :6], rotated(x[:, :6], [0, 7, 1000]))


def test_scores_depend_on_the_distance_alone():
    query, key = np.random.default_rng(1).standard_normal((2, 1, 8))
    score = lambda m, n: float((rotated(query, [m]) * rotated(key, [n])).sum())
    assert score(5, 2) == pytest.approx(score(105, 102), abs=1e-4)
    assert abs(score(5, 2) - score(5, 3)) > 1e-2


def test_tables_are_float32_and_rotation_keeps_the_dtype():
    cos, sin = rotary_tables(jnp.zeros((1, 2), jnp.int32), frequencies(ModelConfig(), 4))
    assert cos.dtype == sin.dtype == jnp.float32 and cos.shape == (1, 2, 2)
    assert rotate(jnp.ones((1, 2, 3, 4), jnp.bfloat16), cos, sin).dtype == jnp.bfloat16
