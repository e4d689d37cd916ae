"""Adafactor on every layout against optax, layer by layer and expert by expert, on one device."""

from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.optim import make_optimizer
from jaxpar.optim.optimizer import states_by_weight
from tests.optim.runs import make_trees, run_optimizer
from tests.optim.specs import experts, matrix
from tests.traced import mesh_of

CONFIG = OptimizerConfig(name="adafactor", learning_rate=0.05, schedule="constant", warmup_steps=0, weight_decay=0.2)


# on a mesh of pipe 2, fsdp 2, tensor 2: name -> (weight, layout)
CASES = {
    "replicated": (matrix(4, 8, 12), P()),
    "stages": (matrix(4, 8, 12), P("pipe")),
    "inputs_over_fsdp": (matrix(4, 8, 12), P("pipe", "fsdp")),
    "outputs_over_tensor": (matrix(4, 12, 8), P("pipe", None, "tensor")),
    "both": (matrix(4, 8, 12), P("pipe", "fsdp", "tensor")),
    "both_reversed": (matrix(4, 8, 12), P("pipe", "tensor", "fsdp")),
    "inputs_over_two_axes": (matrix(4, 8, 12), P(None, ("fsdp", "tensor"))),
    "outputs_over_two_axes": (matrix(4, 8, 12), P("pipe", None, ("tensor", "fsdp"))),
    "heads": (matrix(4, 8, 4, 6), P("pipe", "fsdp", "tensor", None)),
    "heads_as_inputs": (matrix(4, 4, 2, 12, inputs=2), P("pipe", "tensor", None, "fsdp")),
    "head_dim": (matrix(4, 6, 2, 4), P(None, None, "tensor", "fsdp")),
    "experts": (experts(4, 4, 6, 8), P("pipe", "fsdp", None, "tensor")),
    "experts_over_two_axes": (experts(4, 4, 8, 6), P(None, ("fsdp", "pipe"), "tensor")),
    "table": (ParamSpec((16, 8), ("vocab", "embed"), decay=True), P("tensor", "fsdp")),
    "table_over_stages": (ParamSpec((16, 8), ("vocab", "embed"), decay=True), P(("pipe", "tensor"), "fsdp")),
    "padded_table": (ParamSpec((16, 8), ("vocab", "embed"), decay=True, padding=5), P("tensor", "fsdp")),
    "padded_head": (ParamSpec((8, 16), ("embed", "vocab"), decay=True, padding=5), P("fsdp", ("pipe", "tensor"))),
    "norm": (ParamSpec((4, 8), ("layers", "norm")), P("pipe")),
    "bias": (ParamSpec((4, 2, 6), ("layers", "heads", "head_dim")), P("pipe", "tensor")),
    "vector": (ParamSpec((8,), ("norm",)), P()),
}
SPECS = {name: spec for name, (spec, _) in CASES.items()}
LAYOUT = {name: layout for name, (_, layout) in CASES.items()}
RELATIVE = {"absolute": False, "relative": True}


def by_optax(spec: ParamSpec, gradients: list[np.ndarray], weight: np.ndarray, relative: bool) -> np.ndarray:
    """optax.adafactor on each matrix, [inputs, outputs], without padding, which stays zero; decay is decoupled there as
    here, times the rate."""
    transform = optax.adafactor(
        0.05,
        min_dim_size_to_factor=1,
        multiply_by_parameter_scale=relative,
        weight_decay_rate=0.05 * 0.2 if spec.decay else None,
        factored=spec.decay,
    )
    shape, real = spec.unpadded_shape, tuple(slice(size) for size in spec.unpadded_shape)
    gradients, weight = [gradient[real] for gradient in gradients], weight[real]
    layers, rest = prod(shape[: spec.stack]), shape[spec.stack :]
    flat = (prod(rest[: spec.inputs]), prod(rest[spec.inputs :])) if spec.decay else (prod(rest),)

    def layer(weight, gradients):
        state = transform.init(weight)
        for gradient in gradients:
            update, state = transform.update(gradient, state, weight)
            weight = optax.apply_updates(weight, update)
        return weight

    done = [
        layer(jnp.asarray(each.reshape(flat)), [jnp.asarray(g.reshape(layers, *flat)[index]) for g in gradients])
        for index, each in enumerate(weight.reshape(layers, -1))
    ]
    return np.pad(np.stack(done).reshape(shape), [(0, a - b) for a, b in zip(spec.shape, shape, strict=True)])


@pytest.fixture(scope="module")
def trees():
    master, *gradients = make_trees(SPECS, 5)
    for tree in (master, *gradients):
        tree["padded_table"][11:] = 0
        tree["padded_head"][:, 11:] = 0
    for gradient in gradients:  # Layers whose gradients differ in size, rows that have none, as padding has.
        for name, spec in SPECS.items():
            if spec.axes[0] == "layers":
                gradient[name] *= np.float32([1e-6, 1, 30, 0]).reshape(-1, *[1] * (len(spec.shape) - 1))
        gradient["table"][3] = 0
    return master, gradients


@pytest.fixture(scope="module", params=RELATIVE.values(), ids=RELATIVE.keys())
def runs(request, trees):
    """(whether steps are relative, the weights after a run on the mesh)."""
    master, gradients = trees
    config = OptimizerConfig(**{**vars(CONFIG), "options": {"relative": request.param}})
    mesh = mesh_of(pipe=2, fsdp=2, tensor=2)
    return request.param, run_optimizer(config, SPECS, LAYOUT, gradients, master, mesh=mesh)[0]


def distance(value, reference):
    return np.abs(value - reference).max() / np.abs(reference).max()


@pytest.mark.parametrize("name", CASES)
def test_four_steps_equal_optax_layer_by_layer(name, trees, runs):
    master, gradients = trees
    relative, weights = runs
    wanted = by_optax(SPECS[name], [gradient[name] for gradient in gradients], master[name], relative)
    assert distance(weights[name], wanted) <= 1e-5


def test_a_matrix_keeps_a_mean_per_row_and_column_where_the_weight_lies():
    optimizer = make_optimizer(CONFIG, moments="float32", specs=SPECS, layout=LAYOUT)
    state = jax.eval_shape(optimizer.init, jax.tree.map(lambda spec: jnp.zeros(spec.shape), SPECS))
    shapes = {name: states_by_weight(state, optimizer.structure)[sorted(SPECS).index(name)] for name in SPECS}
    shapes = jax.tree.map(lambda leaf: leaf.shape, shapes)
    assert shapes["heads"] == {"rows": (4, 8), "columns": (4, 4, 6)}
    assert shapes["heads_as_inputs"] == {"rows": (4, 4, 2), "columns": (4, 12)}
    assert shapes["table"] == {"rows": (16,), "columns": (8,)}
    assert shapes["bias"] == {"nu": (4, 2, 6)}
    layout = optimizer.state_layout(LAYOUT)
    assert jax.tree.structure(layout) == jax.tree.structure(state)
    assert (layout["rows"]["heads"], layout["columns"]["heads"]) == (P("pipe", "fsdp"), P("pipe", "tensor", None))
    assert layout["rows"]["heads_as_inputs"] == P("pipe", "tensor", None)
    assert layout["columns"]["heads_as_inputs"] == P("pipe", "fsdp")
    assert layout["columns"]["inputs_over_fsdp"] == P("pipe")
