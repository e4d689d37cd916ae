"""The moving average of the weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.optim import make_optimizer
from jaxpar.optim.optimizer import next_average
from tests.optim.runs import make_trees, run_optimizer
from tests.traced import mesh_of

CONFIG = OptimizerConfig(learning_rate=0.1, schedule="constant", warmup_steps=0, ema=0.15)
SPEC = {"w": ParamSpec((4, 8), ("layers", "embed"), decay=True)}


@pytest.mark.parametrize("name", ["adamw", "muon", "lion", "adafactor"])
def test_the_average_follows_the_weights_after_each_update_wherever_they_lie(name):
    master, *gradients = make_trees(SPEC, 5)
    config = OptimizerConfig(**{**vars(CONFIG), "name": name})
    layout, mesh = {"w": P("pipe", "fsdp")}, mesh_of(pipe=2, fsdp=2)
    runs = [run_optimizer(config, SPEC, layout, gradients[: n + 1], master, mesh=mesh) for n in range(4)]
    average = master["w"].astype(np.float64)
    for t, (weights, state) in enumerate(runs):
        decay = min(0.15, (1 + t) / (10 + t))
        average = decay * average + (1 - decay) * weights["w"]
        np.testing.assert_allclose(state["average"]["w"], average, rtol=1e-5, atol=1e-6)
        assert state["average"]["w"].dtype == np.float32


def test_the_first_weights_are_soon_forgotten_and_later_ones_decay_as_asked():
    average = next_average({"w": jnp.float32(1.0)}, {"w": jnp.float32(0.0)}, jnp.int32(0), 0.999)["w"]
    shares = [1.0, float(average)]
    for step in range(1, 20):
        average = next_average({"w": average}, {"w": jnp.float32(0.0)}, jnp.int32(step), 0.999)["w"]
        shares.append(float(average))
    assert shares[1] == pytest.approx(0.1)
    assert shares[10] < 2e-5
    late = next_average({"w": jnp.float32(1.0)}, {"w": jnp.float32(0.0)}, jnp.int32(100_000), 0.999)["w"]
    assert float(late) == pytest.approx(0.999)


def test_without_a_decay_nothing_is_kept():
    config = OptimizerConfig(**{**vars(CONFIG), "ema": None})
    optimizer = make_optimizer(config, moments="float32", specs=SPEC, layout={"w": P()})
    assert "average" not in optimizer.init({"w": jnp.ones((4, 8))})
    assert "average" not in optimizer.state_layout({"w": P()})


def test_it_starts_as_the_weights_in_float32_and_lies_where_they_lie():
    layout = {"w": P("pipe", "fsdp")}
    optimizer = make_optimizer(CONFIG, moments="bfloat16", specs=SPEC, layout=layout)
    master = {"w": jnp.arange(32.0).reshape(4, 8)}
    state = jax.jit(optimizer.init)(master)
    assert state["average"]["w"].dtype == jnp.float32
    np.testing.assert_array_equal(state["average"]["w"], master["w"])
    assert optimizer.state_layout(layout)["average"] == layout
