"""Lion on every layout against NumPy in float64."""

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.parameters import ParamSpec
from tests.optim.runs import make_trees, run_optimizer
from tests.traced import mesh_of

CONFIG = OptimizerConfig(
    name="lion",
    learning_rate=0.01,
    schedule="constant",
    warmup_steps=0,
    weight_decay=0.5,
    options={"beta1": 0.8, "beta2": 0.95},
)
MATRIX = ParamSpec((4, 8, 6), ("layers", "embed", "mlp"), matrix=True, decay=True)
SPECS = {"rest": MATRIX, "split": MATRIX, "stage": MATRIX, "scale": ParamSpec((4, 8), ("layers", "norm"))}
LAYOUT = {"rest": P(), "split": P(None, ("fsdp", "tensor")), "stage": P("pipe", "fsdp", "tensor"), "scale": P("pipe")}


def lion64(gradients, weight, decay):
    """Chen et al. 2023, algorithm 2, with CONFIG's numbers."""
    weight = weight.astype(np.float64)
    momentum = np.zeros_like(weight)
    for gradient in gradients:
        direction = np.sign(0.8 * momentum + 0.2 * gradient.astype(np.float64))
        weight = weight - 0.01 * (direction + decay * weight)
        momentum = 0.95 * momentum + 0.05 * gradient
    return weight, momentum


MASTER, *GRADIENTS = make_trees(SPECS, 6)


@pytest.fixture(scope="module")
def sharded():
    return run_optimizer(CONFIG, SPECS, LAYOUT, GRADIENTS, MASTER, mesh=mesh_of(pipe=2, fsdp=2, tensor=2))


@pytest.mark.parametrize("name", SPECS)
def test_five_steps_equal_lion_in_float64(name, sharded):
    weight, momentum = lion64([g[name] for g in GRADIENTS], MASTER[name], 0.5 if SPECS[name].decay else 0.0)
    np.testing.assert_allclose(sharded[0][name], weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sharded[1]["mu"][name], momentum, rtol=1e-5, atol=1e-6)


def test_a_weight_without_gradient_stays_where_it_is():
    spec, weight = {"w": ParamSpec((3,), ("norm",))}, {"w": np.float32([1, -2, 0])}
    weights, _ = run_optimizer(CONFIG, spec, {"w": P()}, [{"w": np.zeros(3, np.float32)}], weight)
    np.testing.assert_array_equal(weights["w"], weight["w"])
