"""Several residual streams, learned residuals and sparse gates: limits, refusals, and generation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.residual import AltUpConfig
from jaxpar.layers.counting import parameter_count
from jaxpar.layers.declaration.weights import specs_of, with_weights
from jaxpar.layers.residual.altup import AltUp, merged, spread
from tests.decoding import assert_decodes
from tests.nonzero_gradients import FAMILIES
from tests.sentences import refused
from tests.small_run import SmallRun, small

MODEL = FAMILIES["gemma3n"]


def altup(clip: float | None) -> tuple[Any, dict[str, jax.Array]]:
    """The module of three streams and weights for it, in which some coefficients have a weight above 1."""
    module = AltUp(small(model={"altup": AltUpConfig(3, 1, clip)}).model)
    draw = np.random.default_rng(3)
    weights = {name: jnp.asarray(draw.normal(size=spec.shape), jnp.float32) for name, spec in specs_of(module).items()}
    assert all(float(jnp.abs(weights[name]).max()) > 1 for name in ("prediction", "correction"))
    return module, weights


@pytest.mark.parametrize("name", ["prediction", "correction"])
def test_coefficients_are_limited_in_training_alone(name: str):
    (limited, weights), (free, _) = altup(0.5), altup(None)
    x = jnp.asarray(np.random.default_rng(4).normal(size=(1, 2, 96)), jnp.float32)
    y, norm = x[..., :32], lambda x: 32 * x

    def streams(module: Any, weights: dict[str, jax.Array], train: bool) -> jax.Array:
        filled = with_weights(module, weights)
        return filled.predict(x, norm, train) if name == "prediction" else filled.correct(
            x.reshape(1, 2, 3, 32), y, norm, train
        )  # fmt: skip

    inside = weights | {name: jnp.clip(weights[name], -0.5, 0.5)}
    np.testing.assert_array_equal(streams(limited, weights, True), streams(free, inside, True))
    np.testing.assert_array_equal(streams(limited, weights, False), streams(free, weights, False))
    assert float(jnp.abs(streams(free, weights, True) - streams(free, inside, True)).max()) > 0.1


def test_tokens_that_are_all_zeros_have_gradients():
    """As those of a pipeline's idle ticks."""
    matrices = [jnp.eye(4), 2 * jnp.eye(4)]
    gradient = jax.grad(lambda x: merged(spread(x, matrices), matrices).sum())(jnp.zeros((1, 2, 4)))
    assert np.isfinite(gradient).all()


def test_streams_and_learned_residuals_count_as_parameters():
    plain, streams = (small(model=MODEL | more).model for more in ({"altup": None, "laurel_rank": None}, {}))
    embed, layers = plain.embed, plain.layers
    of_layer = embed * 3 + 3 * 3 * 3 + 3 * 3 + embed + 2 * embed * 8 + embed
    outside = 2 * 2 * embed**2
    assert parameter_count(streams, False) - parameter_count(plain, False) == layers * of_layer + outside


def test_combinations_that_are_not_possible_are_refused():
    def build(**model: Any) -> None:
        SmallRun(small(model=model))

    with refused("model.altup.active: 4", "of 3 streams", "at most 2"):
        build(altup=AltUpConfig(3, 4))
    with refused("model.laurel_rank: 8", "model.norm_placement: parallel", "pre or sandwich"):
        build(laurel_rank=8, norm_placement="parallel")
    with refused("model.activation_sparsity: 0.5", "model.activation: relu2", "geglu"):
        build(activation_sparsity=0.5, activation="relu2")
    with refused("model.activation_sparsity: 0.5", "experts"):
        build(activation_sparsity=0.5, experts=ExpertsConfig(2))
    with refused("model.value_norm: true", "mamba2"):
        build(value_norm=True, mixer="mamba2")
    with refused("model.laurel_rank", "parallel.tensor", "7 is not divisible"):
        SmallRun(small(model={"laurel_rank": 7}, parallel={"tensor": 2}))


@pytest.mark.matrix(quick=(), ci=1)
@pytest.mark.parametrize("parallel", [{}, {"context": 2, "tensor": 2}], ids=["one device", "context and tensor"])
def test_decode_equals_the_parallel_form_for_200_tokens(parallel: dict[str, Any]):
    assert_decodes(MODEL | {"value_norm": True}, parallel)
