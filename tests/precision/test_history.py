"""Delayed scaling: its state machine against a simulation, and the state of whole runs."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.layers.matmul_formats import tensor_names
from jaxpar.precision.history import ScaleHistory, is_gradient, scales_of
from jaxpar.precision.recipe import Recipe, recipe_of
from jaxpar.runtime.carried import Outcome
from tests.small_run import SmallRun, small

NAMES = ("mlp_in.input", "up", "up.gradient")
ONE = jnp.float32(1)
"""The loss and the gradient norm of a step."""


class Simulated:
    """The state machine in float64, one tensor at a time: a window of the last steps' magnitudes."""

    def __init__(self, steps: int, largest_code: float, first: float):
        self.window: list[float] = []
        self.steps, self.largest_code, self.first = steps, largest_code, first

    def scale(self) -> float:
        most = max(self.window, default=0.0)
        return self.first if most == 0 else float(2.0 ** np.ceil(np.log2(np.float64(most) / self.largest_code)))

    def see(self, magnitude: float) -> None:
        self.window = [magnitude, *self.window][: self.steps]


def test_twenty_steps_equal_a_simulation():
    """Magnitudes rise and fall, so that entries leave the window; a step that is skipped leaves no trace."""
    recipe, layers, steps, tokens = Recipe(from_history=True), 3, 4, 4096
    draw = np.random.default_rng(0)
    simulated = {
        (layer, name): Simulated(
            steps, 57344.0 if is_gradient(name) else 448.0, 1 / tokens if is_gradient(name) else 1.0
        )
        for layer in range(layers)
        for name in NAMES
    }
    delayed = ScaleHistory(None, recipe, NAMES, layers, steps, tokens)
    history = delayed.init()
    for step in range(20):
        wanted = [[simulated[layer, name].scale() for name in NAMES] for layer in range(layers)]
        np.testing.assert_array_equal(delayed.scales(history), np.asarray(wanted, np.float32))
        seen = np.exp(draw.normal(0, 6, (layers, len(NAMES)))).astype(np.float32)
        finite = step not in (5, 11)
        history = delayed.next(history, Outcome(jnp.bool_(finite), ONE, ONE, jnp.asarray(seen)))
        for layer in range(layers):
            for place, name in enumerate(NAMES):
                if finite:
                    simulated[layer, name].see(float(seen[layer, place]))


@pytest.mark.long
def test_what_a_step_saw_does_not_depend_on_the_layout():
    """Of weights bit for bit, in the order of the model; of activations and gradients up to the order of sums."""
    excepted = MatmulOptions(exclude=("head", "router", "attention_out"), first_layers=1, last_layers=0)
    seen: list[Any] = []
    for parallel in ({"microbatches": 2}, {"pipe": 2, "fsdp": 2, "tensor": 2, "microbatches": 2}):
        precision = {"matmul": "fp8_delayed", "matmul_options": replace(excepted, history=3)}
        config = small(
            model={"layers": 4, "embed": 64, "mlp": 96, "kv_heads": 4}, precision=precision, parallel=parallel
        )
        run = SmallRun(config)
        state = run.step.residency.initial_state()
        weights = run.by_layer(state.master)["layers"]["all"]
        for step in range(2):
            state, metrics = run.step.train(state, run.batch(step), run.step.arguments)
            assert metrics.finite
            np.testing.assert_array_equal(metrics.carried["matmuls"].magnitudes, state.carried["matmuls"][0])
        scales = scales_of(state.carried["matmuls"][1:], tensor_names(config), recipe_of(config.precision), 1)
        np.testing.assert_array_equal(metrics.carried["matmuls"].scales[1:], scales[1:])
        history = np.asarray(jax.device_get(state.carried["matmuls"]))
        assert history.shape == (3, 4, len(tensor_names(config)))
        assert not history[2].any() and not history[:, 0].any(), "a third step, or a layer that is an exception"
        names = tensor_names(config)
        for name, part in (("query", "attention"), ("up", "mlp"), ("down", "mlp")):
            wanted = np.abs(weights[part][name]).reshape(4, -1).max(axis=1)[1:]
            np.testing.assert_array_equal(history[1, 1:, names.index(name)], wanted)
        assert (history[:2, 1:] > 0).all()
        seen.append(history)
    np.testing.assert_allclose(seen[0], seen[1], rtol=0.1)
    assert "output" not in tensor_names(config)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_magnitude_that_is_not_finite_does_not_enter(bad: float):
    """The update is refused, and a step without one leaves the window as it was."""
    delayed = ScaleHistory(None, Recipe(from_history=True), ("up",), layers=1, steps=2, tokens=1)
    observed = jnp.full((1, 1), bad, jnp.float32)
    assert not delayed.accepts(observed)
    assert not np.asarray(delayed.next(delayed.init(), Outcome(jnp.bool_(False), ONE, ONE, observed))).any()
