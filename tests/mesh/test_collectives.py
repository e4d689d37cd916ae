"""The collectives: what they compute, the bytes their docstrings promise, and what they refuse."""

import re
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.mesh import collectives
from jaxpar.mesh.axes import vary
from tests.sentences import refused
from tests.traced import mesh_of, sent_bytes

SIZES = {"fsdp": 2, "context": 2, "tensor": 2}
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "gather_sequence": ({}, ("tensor",)),
    "scatter_sequence": ({}, ("tensor",)),
    "gather_context": ({}, ("context",)),
    "gather_weight": ({"axes": ("fsdp", "tensor"), "dim": 1}, ("fsdp", "tensor")),
    "scatter_gradient": ({"axes": ("fsdp", "context"), "dim": 2}, ("fsdp", "context")),
    "reduce_sum": ({"axes": ("fsdp", "context", "tensor")}, ("fsdp", "context", "tensor")),
    "reduce_max": ({"axes": ("context",)}, ("context",)),
}
"""A collective's arguments and the axes that it works over."""
WHOLE = np.random.default_rng(0).standard_normal((2, 8, 4)).astype(np.float32)
LAYOUT = P("fsdp", ("context", "tensor"))


def on_the_mesh(function: Any) -> Any:
    """`function` of each rank's part of `WHOLE`; the ranks' results are stacked, [fsdp * context * tensor, ...]."""
    stacked = lambda x: vary(function(vary(x)))[None]
    every_axis = P((*SIZES, "pipe", "replica", "expert"))
    return jax.shard_map(stacked, mesh=mesh_of(**SIZES), in_specs=LAYOUT, out_specs=every_axis)


def on_the_stages(function: Any) -> Any:
    """`function` of each pipeline rank's number in `STAGES`."""
    return jax.shard_map(function, mesh=mesh_of(pipe=4), in_specs=P("pipe"), out_specs=P("pipe"))


STAGES = np.arange(1, 5, dtype=np.float32)
"""One number on each of four pipeline ranks."""


def parts() -> np.ndarray:
    """What each rank holds of `WHOLE`: [fsdp, context, tensor, row, part, embed]."""
    return WHOLE.reshape(2, 1, 2, 2, 2, 4).transpose(0, 2, 3, 1, 4, 5)


def collective(name: str) -> Any:
    return partial(getattr(collectives, name), **CASES[name][0])


@pytest.mark.parametrize("name", CASES)
def test_the_program_sends_the_bytes_of_the_docstring(name: str):
    documented = collectives.reduce_sum if name == "reduce_max" else getattr(collectives, name)
    formula = re.search(r"Sends `([^`]*)` bytes", documented.__doc__)
    assert formula, "the docstring has no formula"
    sent = sent_bytes(mesh_of(**SIZES), on_the_mesh(collective(name)), WHOLE)
    n = prod(SIZES[axis] for axis in CASES[name][1])
    assert len(sent) == 1, "it is one collective of JAX"
    assert sum(sent.values()) == eval(formula[1], {"x": WHOLE.nbytes // 8, "n": n}) > 0


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("gather_sequence", lambda x: np.concatenate([x[:, :, [0, 0]], x[:, :, [1, 1]]], axis=4)),
        ("gather_context", lambda x: np.concatenate([x[:, [0, 0]], x[:, [1, 1]]], axis=4)),
        ("scatter_sequence", lambda x: np.stack(np.split(x.sum(2), 2, axis=3), axis=2)),
        ("gather_weight", lambda x: np.concatenate([x[[i, i]][:, :, [j, j]] for i in (0, 1) for j in (0, 1)], axis=4)),
        ("scatter_gradient", lambda x: x.sum((0, 1)).reshape(2, 1, 2, 2, 2, 1).transpose(3, 4, 0, 1, 2, 5)),
        ("reduce_sum", lambda x: np.broadcast_to(x.sum((0, 1, 2)), x.shape)),
        ("reduce_max", lambda x: x.max(axis=1, keepdims=True)[:, [0, 0]]),
    ],
)
def test_each_rank_gets_what_the_docstring_states(name: str, wanted: Any):
    found = np.asarray(jax.jit(on_the_mesh(collective(name)))(WHOLE))
    expected = wanted(parts())
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-6, atol=1e-6)


def test_the_derivatives_of_gathering_and_scattering_the_sequence_are_each_other():
    def pull(function: Any, back: Any) -> Any:
        def program(x: jax.Array) -> jax.Array:
            y, pullback = jax.vjp(function, x)
            return jnp.abs(pullback(y)[0] - back(y))

        return np.asarray(jax.jit(on_the_mesh(program))(WHOLE))

    gather, scatter = collectives.gather_sequence, collectives.scatter_sequence
    assert not pull(gather, scatter).any()
    assert not pull(scatter, gather).any()


def test_a_maximum_has_no_derivative():
    function = lambda x: jax.grad(lambda y: collectives.reduce_max(y, ("context",)).sum())(x)
    assert not np.asarray(jax.jit(on_the_mesh(function))(WHOLE)).any()


@pytest.mark.parametrize("name", ["reduce_sum", "scatter_gradient"])
def test_a_sum_over_ranks_that_all_hold_the_same_value_is_refused(name: str):
    """The result would be the value times the number of ranks, and nothing else would notice."""
    arguments = CASES[name][0]
    program = jax.shard_map(
        partial(getattr(collectives, name), **arguments), mesh=mesh_of(**SIZES), in_specs=P("fsdp"), out_specs=P("fsdp")
    )
    with refused(f"{name} over", "same on all ranks of ['context'", error=ValueError) as error:
        jax.eval_shape(program, WHOLE)
    assert "'fsdp'" not in str(error.value).split("ranks of")[1], "only the axes that are wrong are named"


@pytest.mark.parametrize("name", ["gather_sequence", "scatter_sequence", "gather_context"])
def test_a_collective_refuses_a_value_that_all_ranks_hold_alike(name: str):
    collective = getattr(collectives, name)
    program = jax.shard_map(collective, mesh=mesh_of(**SIZES), in_specs=P("fsdp"), out_specs=P("fsdp"), check_vma=True)
    with refused(f"{name} over", "same on all ranks", error=ValueError):
        jax.eval_shape(program, jax.ShapeDtypeStruct((8, 8, 8), jnp.float32))


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.float8_e4m3fn])
@pytest.mark.parametrize(
    ("name", "arguments", "axes"),
    [
        ("reduce_sum", {"axes": ("fsdp",)}, ("fsdp",)),
        ("scatter_gradient", {"axes": ("fsdp",), "dim": 0}, ("fsdp",)),
        ("scatter_sequence", {}, ("tensor",)),
        ("scatter_context", {}, ("context",)),
        ("scatter_tokens", {}, ("expert", "tensor")),
        ("sum_over_heads", {}, ("tensor",)),
        ("sum_over_stages", {}, ("pipe",)),
    ],
)
def test_a_sum_in_8_bits_is_refused(name: str, arguments: dict[str, Any], axes: tuple[str, ...], dtype: Any):
    """It would add up in that type: 100 + 100 is -56."""
    program = jax.shard_map(
        partial(getattr(collectives, name), **arguments), mesh=mesh_of(**SIZES), in_specs=P(axes), out_specs=P(axes)
    )
    with refused(f"{name} of {jnp.dtype(dtype).name}", "computed in this type", "float32", error=ValueError):
        jax.eval_shape(program, jax.ShapeDtypeStruct((8, 8, 8), dtype))


def test_a_sum_over_no_axes_is_the_value():
    np.testing.assert_array_equal(
        jax.jit(on_the_mesh(lambda x: collectives.reduce_sum(x, ())))(WHOLE).ravel(), parts().ravel()
    )


@pytest.mark.parametrize(
    ("by", "wrap", "wanted"),
    [(1, False, [0, 1, 2, 3]), (-1, False, [2, 3, 4, 0]), (1, True, [4, 1, 2, 3]), (-1, True, [2, 3, 4, 1])],
)
def test_a_stage_gets_what_its_neighbour_hands_on(by: int, wrap: bool, wanted: list[float]):
    shift = on_the_stages(partial(collectives.shift_stage, by=by, wrap=wrap))
    np.testing.assert_array_equal(jax.jit(shift)(STAGES), wanted)


def test_handing_on_to_a_stage_sends_the_bytes_of_the_docstring():
    assert "Sends `x` bytes" in str(collectives.shift_stage.__doc__)
    shift = on_the_stages(partial(collectives.shift_stage, by=1, wrap=True))
    assert sent_bytes(mesh_of(pipe=4), shift, STAGES) == {"ppermute": STAGES.nbytes // 4}


@pytest.mark.parametrize(
    ("collective", "axis"), [(collectives.sum_over_stages, "pipe"), (collectives.sum_over_heads, "tensor")]
)
def test_what_ranks_sum_each_may_use_differently_and_their_gradients_are_summed_too(collective: Any, axis: str):
    def program(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y, pullback = jax.vjp(collective, x)
        return y, pullback(x**2)[0]

    mesh = mesh_of(**{axis: 4})
    mapped = jax.shard_map(program, mesh=mesh, in_specs=P(axis), out_specs=(P(axis), P(axis)))
    y, dx = jax.jit(mapped)(STAGES)
    np.testing.assert_array_equal(y, [10] * 4)
    np.testing.assert_array_equal(dx, [30] * 4)
    formula = re.search(r"Sends `([^`]*)` bytes", str(collective.__doc__))
    assert formula
    sent = sent_bytes(mesh, jax.shard_map(collective, mesh=mesh, in_specs=P(axis), out_specs=P(axis)), STAGES)
    assert sum(sent.values()) == eval(formula[1], {"x": STAGES.nbytes // 4, "n": 4})


@pytest.mark.parametrize(
    "collective",
    [partial(collectives.shift_stage, by=1, wrap=False), collectives.sum_over_stages],
    ids=["shift", "sum"],
)
def test_a_value_that_all_stages_hold_alike_is_not_sent_among_them(collective: Any):
    program = jax.shard_map(collective, mesh=mesh_of(pipe=4), in_specs=P(), out_specs=P("pipe"))
    with refused("over ('pipe',)", "same on all ranks of ['pipe']", error=ValueError):
        jax.eval_shape(program, jax.ShapeDtypeStruct((4,), jnp.float32))
