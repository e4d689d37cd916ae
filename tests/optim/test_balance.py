"""Biases that balance experts: moved by a fixed step against the sign of the load, and in no norm."""

import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.optim.arguments import optimizer_arguments
from jaxpar.optim.optimizer import balance, make_optimizer

SPEC = ParamSpec((2, 4), ("layers", "router"), init="zeros", balance_rate=0.01)
COUNTS = jnp.float32([[3, 1, 1, 3], [0, 0, 4, 0]])


def test_experts_with_fewer_tokens_than_the_mean_become_likelier():
    direction, state = balance(0.01).direction(COUNTS, jnp.zeros((2, 4)), {}, jnp.int32(0), None)
    np.testing.assert_array_equal(direction, [[1, -1, -1, 1], [-1, -1, 1, -1]])
    assert state == {}


def test_an_expert_with_as_many_tokens_as_the_mean_stays_however_the_sums_were_rounded():
    """In units of a token's share of the batch, whose sums differ in the last bit from layout to layout."""
    share = jnp.float32([[128, 127, 128, 129], [128, 128, 128, 128]]) / jnp.float32(248)
    for rounded in (share, jnp.nextafter(share, 0), jnp.nextafter(share, 1)):
        counts = rounded.at[:, 1].set(share[:, 1])
        direction, _ = balance(0.01).direction(counts, jnp.zeros((2, 4)), {}, jnp.int32(0), None)
        np.testing.assert_array_equal(direction, [[0, -1, 0, 1], [0, 0, 0, 0]])


def test_the_step_is_the_same_throughout_the_schedule_whatever_the_optimizer():
    for name in ("adamw", "muon", "lion", "adafactor"):
        config = OptimizerConfig(name=name, warmup_steps=10, weight_decay=0.5)
        layout = {"bias": P()}
        optimizer = make_optimizer(config, moments="float32", specs={"bias": SPEC}, layout=layout)
        (one,), arguments = optimizer.weights, optimizer_arguments(config, steps=20)
        for step in (0, 15):
            zeros = jnp.zeros((2, 4))
            weight, _ = one.update(7 * COUNTS, one.init(zeros), zeros, jnp.int32(step), arguments.for_step(step))
            np.testing.assert_allclose(weight, -0.01 * jnp.sign(COUNTS - COUNTS.mean(1, keepdims=True)))
