"""Normalisations against their formulas in float64, and their precision when compute is bfloat16."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config import ModelConfig
from jaxpar.layers.declaration.weights import with_weights
from jaxpar.layers.norm import NORMS, rms_normalize

MODEL = ModelConfig(embed=24, norm_epsilon=1e-2)
DRAW = np.random.default_rng(0)
SCALE, BIAS = 1 + 0.3 * DRAW.standard_normal(24), DRAW.standard_normal(24)
X, DY = 3 + 2 * DRAW.standard_normal((2, 5, 24)), DRAW.standard_normal((2, 5, 24))


def rms64(x, scale, bias):
    return scale * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-2)


def zero_centered64(x, scale, bias):
    return rms64(x, 1 + scale, bias)


def layer64(x, scale, bias):
    centred = x - x.mean(-1, keepdims=True)
    return scale * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-2) + bias


def unbiased64(x, scale, bias):
    return layer64(x, scale, 0 * bias)


def weightless64(x, scale, bias):
    return layer64(x, 1 + 0 * scale, 0 * bias)


def module(name: str, dtype=jnp.float32) -> Callable:
    """The norm as a function of (x, scale, bias)."""

    def function(x, scale, bias):
        drawn = {"scale": jnp.asarray(scale, dtype), "bias": jnp.asarray(bias, dtype)}
        norm = NORMS[name](MODEL)
        return with_weights(norm, {weight: drawn[weight] for weight in norm.declare(MODEL)})(jnp.asarray(x, dtype))

    return function


CASES = [
    ("rmsnorm", rms64), ("zero_centered_rmsnorm", zero_centered64), ("layernorm", layer64),
    ("unbiased_layernorm", unbiased64), ("weightless_layernorm", weightless64),
]  # fmt: skip


@pytest.mark.parametrize(("name", "formula"), CASES)
def test_a_norm_is_its_formula(name: str, formula: Callable):
    np.testing.assert_allclose(module(name)(X, SCALE, BIAS), formula(X, SCALE, BIAS), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("name", "formula"), CASES)
def test_its_gradient_is_the_slope_of_the_formula(name: str, formula: Callable):
    """Of sum(y * dy), along a random direction of each argument; central differences in float64."""
    numbers = [jnp.asarray(a, jnp.float32) for a in (X, SCALE, BIAS)]
    gradients = jax.grad(lambda *a: jnp.sum(module(name)(*a) * DY), argnums=(0, 1, 2))(*numbers)
    for index, gradient in enumerate(gradients):
        direction = DRAW.standard_normal(gradient.shape)
        at = lambda step, i=index, d=direction: [a + step * d * (j == i) for j, a in enumerate((X, SCALE, BIAS))]
        slope = (np.sum(formula(*at(1e-5)) * DY) - np.sum(formula(*at(-1e-5)) * DY)) / 2e-5
        np.testing.assert_allclose(np.sum(np.asarray(gradient, np.float64) * direction), slope, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("name", "formula"), CASES)
def test_bfloat16_is_rounded_once_at_the_end(name: str, formula: Callable):
    rounded = [np.asarray(jnp.asarray(a, jnp.bfloat16), np.float64) for a in (X, SCALE, BIAS)]
    found = module(name, jnp.bfloat16)(X, SCALE, BIAS)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(found, np.float64), formula(*rounded), rtol=2**-8, atol=1e-6)


def test_squares_that_overflow_float16_do_not_overflow():
    large = jnp.full((1, 24), 300.0, jnp.float16)  # 300^2 > 65504
    np.testing.assert_allclose(rms_normalize(large, jnp.ones(24, jnp.float16), 1e-5), 1.0, rtol=1e-3)
