"""Muon on every layout against the unsharded run and against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.optim.arguments import optimizer_arguments
from jaxpar.optim.muon import muon, newton_schulz
from jaxpar.optim.rule import RuleRequest
from tests.optim.runs import make_trees, run_optimizer
from tests.optim.specs import experts, matrix
from tests.traced import mesh_of

CONFIG = OptimizerConfig(
    name="muon", learning_rate=0.01, matrix_learning_rate=0.05, schedule="constant", warmup_steps=0, weight_decay=0.2
)


# on a mesh of pipe 2, fsdp 2, tensor 2: name -> (weight, layout)
CASES = {
    "replicated": (matrix(4, 8, 12), P()),
    "stages": (matrix(4, 8, 12), P("pipe")),
    "fsdp": (matrix(4, 8, 12), P("pipe", "fsdp")),
    "tensor": (matrix(4, 12, 8), P("pipe", None, "tensor")),
    "both": (matrix(8, 8, 12), P("pipe", "fsdp", "tensor")),
    "both_reversed": (matrix(8, 8, 12), P("pipe", "tensor", "fsdp")),
    "layers_do_not_divide": (matrix(5, 8, 12), P(None, "fsdp", "tensor")),
    "fewer_layers_than_ranks": (matrix(2, 8, 12), P("pipe", "fsdp", "tensor")),
    "one_dim_over_two_axes": (matrix(4, 8, 12), P(None, ("fsdp", "tensor"))),
    "one_dim_over_two_axes_reversed": (matrix(4, 8, 12), P(None, None, ("tensor", "fsdp"))),
    "heads": (matrix(4, 8, 4, 6), P("pipe", "fsdp", "tensor", None)),
    "heads_as_inputs": (matrix(4, 4, 2, 12, inputs=2), P("pipe", "tensor", None, "fsdp")),
    "head_dim": (matrix(3, 6, 2, 4), P(None, None, "tensor", "fsdp")),
    "experts": (experts(2, 4, 6, 8), P("pipe", "fsdp", "tensor")),
    "experts_over_two_axes": (experts(3, 4, 4, 8), P(None, ("fsdp", "pipe"), None, "tensor")),
}
SPECS = {name: spec for name, (spec, _) in CASES.items()} | {"scale": ParamSpec((4, 8), ("layers", "norm"))}
LAYOUT = {name: layout for name, (_, layout) in CASES.items()} | {"scale": P("pipe")}


def orthogonalize64(x):
    """Jordan's Newton-Schulz on one matrix, as published, without a transpose."""
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def muon64(gradients, weight, inputs):
    weight = weight.astype(np.float64)
    momentum = np.zeros_like(weight)
    rows = int(np.prod(weight.shape[1 : 1 + inputs]))
    scale = np.sqrt(max(1, weight[0].size / rows / rows))
    for gradient in gradients:
        momentum = 0.95 * momentum + gradient.astype(np.float64)
        update = gradient + 0.95 * momentum
        moved = np.stack([orthogonalize64(layer.reshape(rows, -1)).reshape(layer.shape) for layer in update])
        weight = weight - 0.05 * (scale * moved + 0.2 * weight)
    return weight, momentum


MASTER, *GRADIENTS = make_trees(SPECS, 4)


@pytest.fixture(scope="module")
def sharded():
    return run_optimizer(CONFIG, SPECS, LAYOUT, GRADIENTS, MASTER, mesh=mesh_of(pipe=2, fsdp=2, tensor=2))


def distance(value, reference):
    return np.abs(value - reference).max() / np.abs(reference).max()


@pytest.mark.parametrize("name", CASES)
def test_three_steps_equal_muon_in_float64(name, sharded):
    spec = CASES[name][0]
    stacked = lambda tree: tree[name].reshape(-1, *spec.shape[spec.stack :])
    of_each = muon64([stacked(g) for g in GRADIENTS], stacked(MASTER), spec.inputs)
    weight, momentum = (x.reshape(spec.shape) for x in of_each)
    assert distance(sharded[0][name], weight) <= 1e-5
    assert distance(sharded[1]["mu"][name], momentum) <= 1e-6


def test_weights_that_are_no_matrix_get_adamw(sharded):
    config = OptimizerConfig(learning_rate=0.01, schedule="constant", warmup_steps=0)
    start, *gradients = ({"scale": tree["scale"]} for tree in (MASTER, *GRADIENTS))
    weights, _ = run_optimizer(config, {"scale": SPECS["scale"]}, {"scale": P()}, gradients, start)
    np.testing.assert_allclose(sharded[0]["scale"], weights["scale"], rtol=1e-6)


def test_newton_schulz_keeps_zero_at_zero():
    """Padding layers are zero; they must not turn into NaN."""
    assert not np.asarray(newton_schulz(jnp.zeros((1, 3, 5)), 5, jnp.float32)).any()


def test_newton_schulz_moves_singular_values_near_one_in_bfloat16_too():
    x = np.random.default_rng(0).standard_normal((2, 16, 8)).astype(np.float32)
    for dtype in (jnp.float32, jnp.bfloat16):
        result = newton_schulz(jnp.asarray(x), 5, dtype)
        assert result.dtype == jnp.float32
        values = np.linalg.svd(np.asarray(result), compute_uv=False)
        assert values.min() > 0.6
        assert values.max() < 1.3


def test_in_bfloat16_products_and_messages_are_rounded_and_momentum_is_not():
    """One step from a momentum of zero, on a mesh that exchanges matrices."""
    spec, layout = CASES["both"]
    gradient = GRADIENTS[0]["both"]

    def step(gradient):
        rule = muon(RuleRequest(CONFIG, spec, layout=layout, dtype="bfloat16"))
        arguments, state = optimizer_arguments(CONFIG, steps=1), {"mu": jnp.zeros_like(gradient)}
        direction, state = rule.direction(gradient, gradient, state, jnp.int32(0), arguments)
        return direction, state["mu"]

    mesh = mesh_of(pipe=2, fsdp=2, tensor=2)
    run = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=layout, out_specs=layout))
    direction, momentum = run(gradient)
    wanted = np.stack([orthogonalize64(layer.astype(np.float64)) for layer in gradient]) * np.sqrt(12 / 8)
    assert 1e-3 < distance(direction, wanted) < 0.2
    np.testing.assert_array_equal(momentum, gradient)
    exchanges = [line for line in run.lower(gradient).as_text().splitlines() if "all_to_all" in line]
    assert exchanges and all("bf16" in line for line in exchanges)
