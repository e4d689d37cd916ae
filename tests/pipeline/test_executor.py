"""The executor: gradients over microbatches are those of the whole batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxpar.mesh.axes import vary
from jaxpar.pipeline.executor import execute
from jaxpar.pipeline.schedules import Schedule, one_stage
from tests.short_documents import into_documents
from tests.small_run import SmallRun, small, worst_difference
from tests.traced import mesh_of, operations

W = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((12, 4)).astype(np.float32)


def run(microbatches: int) -> Any:
    """(microbatches of rows, seed) -> (gradient of seed * sum(tanh(x W)^2), count of rows), on one device."""

    def program(x: jax.Array, seed: jax.Array) -> Any:
        def objective(sinks: Any, data: jax.Array) -> tuple[jax.Array, jax.Array]:
            y = jnp.sum(jnp.tanh(data @ (W + sinks["w"])) ** 2)
            return y, vary(jnp.float32(data.shape[0]))

        gradients, reported = execute(one_stage(microbatches), objective, {"w": vary(jnp.zeros_like(W))}, x, seed)
        alone = lambda a: jax.lax.pmax(a, tuple(mesh_of().axis_names))  # of size 1: for the type alone
        return alone(gradients["w"]), alone(reported)

    whole = PartitionSpec()
    return jax.shard_map(program, mesh=mesh_of(), in_specs=(whole, whole), out_specs=(whole, whole))


@pytest.mark.parametrize("microbatches", [1, 3, 12])
def test_gradients_and_reports_are_summed_over_the_microbatches(microbatches: int):
    gradient, reported = jax.jit(run(microbatches))(X.reshape(microbatches, -1, 4), jnp.float32(0.5))
    wanted = jax.grad(lambda w: 0.5 * jnp.sum(jnp.tanh(X @ w) ** 2))(W)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-6)
    assert float(reported) == 12


def test_microbatches_are_a_loop_and_not_a_longer_program():
    lengths = [len(operations(run(m), X.reshape(m, -1, 4), jnp.float32(1.0))) for m in (2, 12)]
    assert lengths[0] == lengths[1]


def test_a_schedule_of_several_stages_is_not_taken_for_one():
    two = Schedule("two", 2, 1, one_stage(1).ticks)
    with pytest.raises(AssertionError, match="several stages"):
        execute(two, lambda s, d: (jnp.sum(s), jnp.sum(s)), jnp.zeros(1), jnp.zeros((1, 1)), jnp.float32(1))


def test_a_batch_in_four_microbatches_has_the_loss_and_gradients_of_the_whole():
    """Rows differ in how many of their tokens count: a mean of the microbatches' means would be another number."""
    one, four = (SmallRun(small(parallel={"microbatches": count, "fsdp": 2})) for count in (1, 4))
    rows, state = into_documents(one.rows(0), 0), one.step.initial_state()
    assert len(set(rows["mask"].reshape(4, -1).sum(axis=1))) == 4
    loss, gradients = jax.device_get(one.step.gradients(state, one.place(rows)))
    found, found_gradients = jax.device_get(four.step.gradients(state, four.place(rows)))
    assert abs(found - loss) <= 1e-6 * loss
    worst, leaf = worst_difference(found_gradients, gradients)
    assert worst <= 3e-6, f"gradient of {leaf} differs by {worst:.1e}"
