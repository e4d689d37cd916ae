"""The global norm of sharded trees, and clipping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.optim import clip, global_norm

LAYOUT = {
    "replicated": P(),
    "fsdp": P(None, "fsdp"),
    "tensor": P("tensor"),
    "both": P("tensor", ("fsdp",)),
    "one_dim": P(None, ("fsdp", "tensor")),
    "all": P("pipe", ("tensor", "fsdp")),
    "stage": P("pipe"),
}


@pytest.fixture(scope="module")
def tree():
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal((4, 8)).astype(np.float32) for name in LAYOUT}


@pytest.fixture(scope="module")
def norms(tree, make_mesh):
    """The norm of each leaf alone and of the whole tree; that they leave the map as P() proves them invariant."""

    def measure(tree):
        alone = {name: global_norm({name: leaf}, {name: LAYOUT[name]}) for name, leaf in tree.items()}
        return alone | {"tree": global_norm(tree, LAYOUT)}

    mesh = make_mesh(pipe=2, fsdp=2, tensor=2)
    return jax.jit(jax.shard_map(measure, mesh=mesh, in_specs=(LAYOUT,), out_specs=P()))(tree)


@pytest.mark.parametrize("name", LAYOUT)
def test_norm_of_a_leaf_is_the_dense_norm(name, norms, tree):
    assert float(norms[name]) == pytest.approx(np.linalg.norm(tree[name].astype(np.float64)), rel=1e-6)


def test_norm_of_the_tree_is_the_dense_norm(norms, tree):
    dense = np.sqrt(sum((leaf.astype(np.float64) ** 2).sum() for leaf in tree.values()))
    assert float(norms["tree"]) == pytest.approx(dense, rel=1e-6)


def test_a_layout_that_the_values_do_not_have_is_refused(make_mesh):
    mesh = make_mesh(fsdp=2, tensor=2)
    measure = jax.shard_map(lambda x: global_norm([x], [P("fsdp")]), mesh=mesh, in_specs=P("tensor"), out_specs=P())
    with pytest.raises(AssertionError, match="varies over \\['tensor'\\], expected \\['fsdp'\\]"):
        jax.eval_shape(measure, jnp.ones(8))


def test_half_precision_gradients_are_squared_in_float32(make_mesh):
    measure = jax.shard_map(lambda x: global_norm([x], [P()]), mesh=make_mesh(), in_specs=P(), out_specs=P())
    assert float(measure(jnp.full((4,), 1e4, jnp.float16))) == pytest.approx(2e4)


def test_clipping_scales_a_long_gradient_to_the_limit():
    clipped = clip({"a": jnp.array([6.0, 0.0]), "b": jnp.array([8.0], jnp.bfloat16)}, jnp.float32(10.0), 1.0)
    np.testing.assert_allclose(clipped["a"], [0.6, 0.0], rtol=1e-6)
    assert clipped["b"].dtype == jnp.bfloat16
    assert float(clipped["b"][0]) == pytest.approx(0.8, rel=2**-8)


@pytest.mark.parametrize(("norm", "limit"), [(0.5, 1.0), (0.0, 1.0), (10.0, None)])
def test_clipping_leaves_the_rest_alone(norm, limit):
    values = np.array([0.3, -0.4], np.float32)
    np.testing.assert_array_equal(clip([jnp.asarray(values)], jnp.float32(norm), limit)[0], values)


def test_a_norm_that_is_not_finite_shows_in_the_result():
    assert np.isnan(clip([jnp.ones(2)], jnp.float32(np.nan), 1.0)[0]).all()
