"""AdamW and Lion on every layout against NumPy in float64, and what optimizers keep."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.optim import make_optimizer, optimizer_arguments
from tests.optim.runs import make_trees, run_optimizer, update_every_weight
from tests.traced import mesh_of

CONFIG = OptimizerConfig(learning_rate=0.05, warmup_steps=3, schedule="linear", weight_decay=0.2)
LION = OptimizerConfig(
    name="lion", learning_rate=0.01, schedule="constant", warmup_steps=0, weight_decay=0.5,
    options={"beta1": 0.8, "beta2": 0.95},
)  # fmt: skip
ARGUMENTS = optimizer_arguments(CONFIG, steps=100)
MATRIX = ParamSpec((4, 8, 6), ("layers", "embed", "mlp"), matrix=True, decay=True)
SPECS = {
    "tokens": ParamSpec((16, 8), ("vocab", "embed"), decay=True),
    "layers": {"rest": MATRIX, "split": MATRIX, "stage": MATRIX, "scale": ParamSpec((4, 8), ("layers", "norm"))},
    "final": ParamSpec((8,), ("norm",)),
}
LAYOUT = {
    "tokens": P("tensor", "fsdp"),
    "layers": {"rest": P(), "split": P(None, ("fsdp", "tensor"), None), "stage": P("pipe", "fsdp"), "scale": P("pipe")},
    "final": P(),
}


def adamw64(gradients, weight, decay):
    """Loshchilov and Hutter, algorithm 2, with CONFIG's numbers: a warm-up of 3 steps, then linear to step 100."""
    rates = [0.05 / 3, 0.1 / 3, 0.05, 0.05, 0.05 * (1 - 0.9 / 97)]
    weight = weight.astype(np.float64)
    first = second = np.zeros_like(weight)
    for t, (rate, gradient) in enumerate(zip(rates, gradients, strict=True), start=1):
        gradient = gradient.astype(np.float64)
        first = 0.9 * first + 0.1 * gradient
        second = 0.95 * second + 0.05 * gradient**2
        adam = first / (1 - 0.9**t) / (np.sqrt(second / (1 - 0.95**t)) + 1e-8)
        weight = weight - rate * (adam + decay * weight)
    return weight, first, second


def lion64(gradients, weight, decay):
    """Chen et al. 2023, algorithm 2, with LION's numbers."""
    weight = weight.astype(np.float64)
    momentum = np.zeros_like(weight)
    for gradient in gradients:
        direction = np.sign(0.8 * momentum + 0.2 * gradient.astype(np.float64))
        weight = weight - 0.01 * (direction + decay * weight)
        momentum = 0.95 * momentum + 0.05 * gradient
    return weight, momentum


MASTER, *GRADIENTS = make_trees(SPECS, 6)


@pytest.fixture(scope="module", params=[(CONFIG, adamw64), (LION, lion64)], ids=["adamw", "lion"])
def trained(request: pytest.FixtureRequest):
    mesh = mesh_of(pipe=2, fsdp=2, tensor=2)
    return *request.param, run_optimizer(request.param[0], SPECS, LAYOUT, GRADIENTS, MASTER, mesh=mesh)


PATHS = [(jax.tree_util.keystr(path), spec) for path, spec in jax.tree_util.tree_leaves_with_path(SPECS)]


@pytest.mark.parametrize(("path", "spec"), PATHS, ids=[path for path, _ in PATHS])
def test_five_steps_equal_the_rule_in_float64(path, spec, trained):
    def leaf(tree):
        return {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(tree)}[path]

    config, rule, (weights, state) = trained
    weight, *moments = rule([leaf(g) for g in GRADIENTS], leaf(MASTER), config.weight_decay if spec.decay else 0.0)
    np.testing.assert_allclose(leaf(weights), weight, rtol=1e-5, atol=1e-6)
    for name, moment in zip(("mu", "nu"), moments, strict=False):
        np.testing.assert_allclose(leaf(state[name]), moment, rtol=1e-5, atol=1e-6)


def test_a_weight_without_gradient_stays_where_it_is_under_lion():
    spec, weight = {"w": ParamSpec((3,), ("norm",))}, {"w": np.float32([1, -2, 0])}
    weights, _ = run_optimizer(LION, spec, {"w": P()}, [{"w": np.zeros(3, np.float32)}], weight)
    np.testing.assert_array_equal(weights["w"], weight["w"])


def test_decay_moves_only_the_weights_that_ask_for_it():
    # outside a map: with gradients of zero nothing but decay is left
    optimizer = make_optimizer(CONFIG, moments="float32", specs=SPECS, layout=LAYOUT)
    master = jax.tree.map(lambda spec: jnp.ones(spec.shape), SPECS)
    zeros = jax.tree.map(jnp.zeros_like, master)
    weights, _ = update_every_weight(optimizer, ARGUMENTS, zeros, optimizer.init(master), master, jnp.int32(3))
    moved = {"tokens", "rest", "split", "stage"}
    for path, weight in jax.tree_util.tree_leaves_with_path(weights):
        expected = 1 - 0.05 * 0.2 if path[-1].key in moved else 1.0
        np.testing.assert_allclose(weight, expected, rtol=1e-6, err_msg=str(path))


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_layout_of_the_state_is_that_of_the_weights(name):
    config = OptimizerConfig(name=name)
    optimizer = make_optimizer(config, moments="float32", specs=SPECS, layout=LAYOUT)
    layout = optimizer.state_layout(LAYOUT)
    state = jax.eval_shape(optimizer.init, jax.tree.map(lambda spec: jnp.zeros(spec.shape), SPECS))
    assert jax.tree.structure(layout) == jax.tree.structure(state)
    assert layout["mu"] == LAYOUT
    without_matrices = LAYOUT | {"layers": {"rest": None, "split": None, "stage": None, "scale": P("pipe")}}
    assert layout["nu"] == (LAYOUT if name == "adamw" else without_matrices)


PADDED = {
    "table": ParamSpec((16, 8), ("vocab", "embed"), decay=True, padding=5),
    "head": ParamSpec((8, 16), ("embed", "vocab"), decay=True, padding=5),
}


@pytest.mark.parametrize("name", ["adamw", "muon", "lion", "adafactor"])
def test_padding_of_the_vocabulary_moves_no_weight(name):
    config = replace(CONFIG, name=name, options={"relative": True} if name == "adafactor" else {})
    real = {path: ParamSpec(spec.unpadded_shape, spec.axes, decay=True) for path, spec in PADDED.items()}
    layout = dict.fromkeys(PADDED, P())
    master, *gradients = make_trees(real, 3)
    sides = {path: [(0, 5 * (axis == "vocab")) for axis in spec.axes] for path, spec in PADDED.items()}
    pad = lambda tree: {path: np.pad(x, sides[path]) for path, x in tree.items()}
    weights, state = run_optimizer(config, real, layout, gradients, master)
    padded, padded_state = run_optimizer(config, PADDED, layout, [pad(g) for g in gradients], pad(master))
    for path, wanted in pad(weights).items():
        np.testing.assert_allclose(padded[path], wanted, rtol=1e-6, atol=1e-7)
    for path in PADDED:
        for array in state.keys() - {"mu"}:
            mean, wanted = padded_state[array][path], state[array][path]
            np.testing.assert_allclose(mean[tuple(slice(size) for size in wanted.shape)], wanted, rtol=1e-6)
