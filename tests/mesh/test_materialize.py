"""Weights gathered, and gradients in the form they accumulate in: equal to a dense model, for every ZeRO stage."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxpar.config.plan import AxisSizes, Dtypes
from jaxpar.mesh.axes import AXES, vary, varying_axes
from jaxpar.mesh.materialize import materialize, to_optimizer, to_storage, zero_accumulators
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.mesh.placements import Placements, local_shape, place
from jaxpar.mesh.rules import compute_rules
from tests.traced import mesh_of, sent_bytes

SIZES = AxisSizes(replica=2, fsdp=2, tensor=2)
MESH = mesh_of(**dict(SIZES))
SPECS = {
    "mlp": {
        "up": ParamSpec((16, 12), ("embed", "mlp")),
        "down": ParamSpec((12, 16), ("mlp", "embed")),
        "scale": ParamSpec((16,), ("norm",)),
    }
}
ROWS = PartitionSpec(("replica", "fsdp"))
DRAW = np.random.default_rng(0)
WEIGHTS = {"mlp": {name: DRAW.standard_normal(spec.shape).astype(np.float32) for name, spec in SPECS["mlp"].items()}}
INPUT = DRAW.standard_normal((8, 16)).astype(np.float32)


def placements_of(zero: int, compute: str = "float32") -> Placements:
    dtypes = Dtypes(compute=compute, storage=compute, master="float32", gradient="float32", moments="float32")
    return place(SPECS, SIZES, zero, dtypes, compute_rules())


def loss(w: Any, x: jax.Array) -> jax.Array:
    """Of this rank's rows and its part of the hidden width; a plain sum, so that ranks add up."""
    hidden = jnp.tanh((x * w["scale"]) @ w["up"])
    return (vary(hidden) @ w["down"]).astype(jnp.float32)


def gradients(placements: Placements) -> Any:
    """Jitted (master, input) -> gradients in optimizer placement of sum(output^2), and the accumulators' types."""
    layout = placements.optimizer.layout

    def program(master: Any, x: jax.Array) -> Any:
        weights = to_storage(master, placements)["mlp"]
        accumulators = zero_accumulators(weights, placements, part="mlp")

        def objective(accumulators: Any) -> jax.Array:
            y = loss(materialize(weights, accumulators, placements, part="mlp"), vary(x))
            return jnp.sum(jax.lax.psum(y, "tensor") ** 2)

        value, pullback = jax.vjp(objective, accumulators)
        (found,) = pullback(vary(jnp.ones_like(value), varying_axes(value)))
        assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, accumulators)
        return to_optimizer({"mlp": found}, placements)

    return jax.shard_map(program, mesh=MESH, in_specs=(layout, ROWS), out_specs=layout)


def dense_gradients() -> Any:
    """The same in float64 on one device."""
    with jax.enable_x64(True):
        w, x = jax.tree.map(lambda a: np.asarray(a, np.float64), (WEIGHTS["mlp"], INPUT))
        value = lambda w: jnp.sum((jnp.tanh((x * w["scale"]) @ w["up"]) @ w["down"]) ** 2)
        return jax.tree.map(np.asarray, jax.grad(value)(w))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_gradients_equal_the_dense_ones(zero: int):
    placements = placements_of(zero)
    put = lambda a, layout: jax.device_put(a, NamedSharding(MESH, layout))
    found = jax.jit(gradients(placements))(jax.tree.map(put, WEIGHTS, placements.optimizer.layout), put(INPUT, ROWS))
    for name, wanted in dense_gradients().items():
        assert np.abs(found["mlp"][name] - wanted).max() <= 1e-6 * np.abs(wanted).max(), name


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_gradient_accumulators_are_float32_zeros_in_gradient_placement(zero: int):
    placements = placements_of(zero, compute="bfloat16")

    def program(master: Any) -> None:
        weights = to_storage(master, placements)["mlp"]
        for name, accumulator in zero_accumulators(weights, placements, part="mlp").items():
            spec = SPECS["mlp"][name]
            assert weights[name].shape == local_shape(spec.shape, placements.storage.layout["mlp"][name], SIZES)
            assert accumulator.shape == local_shape(spec.shape, placements.gradient.layout["mlp"][name], SIZES)
            assert (weights[name].dtype, accumulator.dtype) == (jnp.bfloat16, jnp.float32)
            assert varying_axes(accumulator) == set(AXES), "or it would be summed over an axis in every microbatch"

    layout = placements.optimizer.layout
    jax.eval_shape(jax.shard_map(program, mesh=MESH, in_specs=(layout,), out_specs=None), WEIGHTS)


def test_materialized_weights_are_whole_in_compute_dtype_and_take_no_gradient_themselves():
    placements = placements_of(3, compute="bfloat16")
    layout = placements.optimizer.layout

    def program(master: Any) -> Any:
        weights = to_storage(master, placements)["mlp"]
        accumulators = zero_accumulators(weights, placements, part="mlp")
        whole = materialize(weights, accumulators, placements, part="mlp")
        assert {leaf.dtype for leaf in jax.tree.leaves(whole)} == {jnp.dtype(jnp.bfloat16)}
        assert (whole["up"].shape, whole["down"].shape) == ((16, 6), (6, 16))
        value = lambda w: materialize(w, accumulators, placements, part="mlp")["up"].astype(jnp.float32).sum()
        return {"mlp": jax.grad(value)(weights)}

    found = jax.jit(jax.shard_map(program, mesh=MESH, in_specs=(layout,), out_specs=layout))(WEIGHTS)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_each_stage_sends_its_own_bytes(zero: int):
    """Weights are gathered in storage dtype; gradients are reduced in float32, over fsdp first and then the rest."""
    sent = sent_bytes(MESH, gradients(placements_of(zero, compute="bfloat16")), WEIGHTS, INPUT)
    matrices, vector = 2 * 16 * 12 // SIZES.tensor, 16  # elements on a device that holds them whole
    of_vector = 2 * 4 * vector * 7 // 8
    of_loss = 2 * 4 * (8 // 4 * 16) // 2
    if zero == 0:
        assert sent == {"psum_invariant": 2 * 4 * matrices * 3 // 4 + of_vector + of_loss}
    else:
        of_shards = 2 * 4 * (matrices // 2) // 2  # over replica
        expected = {"all_gather": 2 * matrices // 2, "reduce_scatter": 4 * matrices // 2}
        assert sent == expected | {"psum_invariant": of_shards + of_vector + of_loss}
