"""The norm of sharded trees, weight by weight and as a whole, and clipping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.mesh.parameters import ParamSpec
from jaxpar.optim import clip, global_norm, squares, squares_layout
from tests.traced import mesh_of

MATRIX, STACK = ParamSpec((4, 8), ("vocab", "embed")), ParamSpec((4, 8), ("layers", "embed"))
CASES = {
    "replicated": (MATRIX, P()),
    "fsdp": (MATRIX, P(None, "fsdp")),
    "tensor": (MATRIX, P("tensor")),
    "both": (MATRIX, P("tensor", ("fsdp",))),
    "one_dim": (MATRIX, P(None, ("fsdp", "tensor"))),
    "all": (MATRIX, P("pipe", ("tensor", "fsdp"))),
    "stack": (STACK, P()),
    "stage": (STACK, P("pipe")),
    "stage_fsdp": (STACK, P("pipe", "fsdp")),
    "stack_tensor": (STACK, P(None, ("tensor", "fsdp"))),
    "experts": (ParamSpec((4, 8), ("experts", "embed")), P("fsdp", "tensor")),
}
SPECS = {name: spec for name, (spec, _) in CASES.items()}
LAYOUT = {name: layout for name, (_, layout) in CASES.items()}
SUMS = squares_layout(LAYOUT, SPECS)


@pytest.fixture(scope="module")
def tree():
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal((4, 8)).astype(np.float32) for name in CASES}


@pytest.fixture(scope="module")
def measured(tree):
    """Squares and norm; that they leave the map in these layouts proves that all ranks have the same ones."""

    def measure(tree):
        sums = squares(tree, LAYOUT, SPECS)
        return sums, global_norm(sums, SUMS)

    mesh = mesh_of(pipe=2, fsdp=2, tensor=2)
    return jax.jit(jax.shard_map(measure, mesh=mesh, in_specs=(LAYOUT,), out_specs=(SUMS, P())))(tree)


@pytest.mark.parametrize("name", CASES)
def test_squares_of_a_weight_are_summed_over_what_splits_it(name, measured, tree):
    rows = (tree[name].astype(np.float64) ** 2).sum(axis=1)
    wanted = rows if CASES[name][0] is STACK else rows.sum()
    np.testing.assert_allclose(measured[0][name], wanted, rtol=1e-6)


def test_norm_of_the_tree_is_the_dense_norm(measured, tree):
    dense = np.sqrt(sum((leaf.astype(np.float64) ** 2).sum() for leaf in tree.values()))
    assert float(measured[1]) == pytest.approx(dense, rel=1e-6)


def test_only_the_row_of_the_layer_that_is_not_finite_reports_it(tree):
    broken = tree["stage_fsdp"].copy()
    broken[2, 5] = np.inf
    mesh, layout = mesh_of(pipe=2, fsdp=2), (P("pipe", "fsdp"),)
    sums = jax.shard_map(lambda x: squares([x], [*layout], [STACK])[0], mesh=mesh, in_specs=layout, out_specs=P("pipe"))
    assert np.isfinite(jax.jit(sums)(broken)).tolist() == [True, True, False, True]


def test_a_layout_that_the_values_do_not_have_is_refused():
    mesh, spec = mesh_of(fsdp=2, tensor=2), ParamSpec((8,), ("norm",))
    sums = jax.shard_map(lambda x: squares([x], [P("fsdp")], [spec])[0], mesh=mesh, in_specs=P("tensor"), out_specs=P())
    with pytest.raises(AssertionError, match="varies over \\['tensor'\\], expected \\['fsdp'\\]"):
        jax.eval_shape(sums, jnp.ones(8))


def test_half_precision_gradients_are_squared_in_float32():
    spec = ParamSpec((4,), ("norm",))
    sums = jax.shard_map(lambda x: squares([x], [P()], [spec])[0], mesh=mesh_of(), in_specs=P(), out_specs=P())
    assert float(sums(jnp.full((4,), 1e4, jnp.float16))) == pytest.approx(4e8)


def test_clipping_scales_a_long_gradient_to_the_limit():
    clipped = clip({"a": jnp.array([6.0, 0.0]), "b": jnp.array([8.0], jnp.bfloat16)}, jnp.float32(10.0), 1.0)
    np.testing.assert_allclose(clipped["a"], [0.6, 0.0], rtol=1e-6)
    assert clipped["b"].dtype == jnp.bfloat16
    assert float(clipped["b"][0]) == pytest.approx(0.8, rel=2**-8)


@pytest.mark.parametrize(("norm", "limit"), [(0.5, 1.0), (0.0, 1.0), (10.0, np.inf)])
def test_clipping_leaves_the_rest_alone(norm, limit):
    values = np.array([0.3, -0.4], np.float32)
    np.testing.assert_array_equal(clip([jnp.asarray(values)], jnp.float32(norm), limit)[0], values)


def test_a_norm_that_is_not_finite_shows_in_the_result():
    assert np.isnan(clip([jnp.ones(2)], jnp.float32(np.nan), 1.0)[0]).all()
