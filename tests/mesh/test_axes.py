"""Which axes a value varies over: the cast, its derivative, and the check."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.mesh.axes import AXES, assert_varies_over, vary, varying_axes
from tests.traced import mesh_of

MESH = mesh_of(fsdp=2, tensor=4)


def traced(function) -> None:
    """Trace `function` of one rank's part of an array that is split over fsdp."""

    def program(x: jax.Array) -> jax.Array:
        function(x)
        return vary(x)

    jax.eval_shape(jax.shard_map(program, mesh=MESH, in_specs=P("fsdp"), out_specs=P(AXES)), jnp.ones(8))


def test_vary_adds_the_axes_that_are_missing_and_no_others():
    def program(x: jax.Array) -> None:
        assert varying_axes(x) == {"fsdp"}
        both = vary({"a": x, "b": jnp.zeros(2)}, ("tensor", "fsdp"))
        assert varying_axes(both["a"]) == varying_axes(both["b"]) == {"fsdp", "tensor"}
        assert varying_axes(vary(x, ())) == {"fsdp"}
        assert varying_axes(vary(x)) == set(AXES)
        assert vary(both, ("fsdp",))["a"] is both["a"]

    traced(program)


def test_the_derivative_of_vary_is_the_sum_over_the_axes_that_it_added():
    """On ranks 0..3 of tensor the cotangent is 0, 1, 2, 3; fsdp, over which the value varied before, is left alone."""

    def program(x: jax.Array) -> jax.Array:
        _, pullback = jax.vjp(lambda y: vary(y, ("fsdp", "tensor")), x)
        cotangent = vary(jnp.ones_like(x), ("fsdp", "tensor")) * jax.lax.axis_index("tensor")
        return pullback(cotangent)[0]

    found = jax.jit(jax.shard_map(program, mesh=MESH, in_specs=P("fsdp"), out_specs=P("fsdp")))(jnp.ones(8))
    np.testing.assert_array_equal(found, np.full(8, 0.0 + 1 + 2 + 3))


@pytest.mark.parametrize("wrong", [(), ("tensor",), ("fsdp", "tensor")])
def test_a_value_that_varies_over_other_axes_than_stated_is_named(wrong: tuple[str, ...]):
    traced(lambda x: assert_varies_over(x, ["fsdp"], "the value"))
    with pytest.raises(AssertionError, match=r"the value varies over \['fsdp'\], expected"):
        traced(lambda x: assert_varies_over(x, wrong, "the value"))
