"""Puts weights that a test has made into the layout of a step, without compiling anything."""

from typing import Any

import jax
import numpy as np

from jaxpar.layout.state import TrainState
from jaxpar.layout.step_layout import shardings
from jaxpar.training.step.train_step import TrainStep


def place(step: TrainStep, weights: Any) -> Any:
    """`weights` (global NumPy arrays) as float32 arrays laid out like the master weights."""
    put = lambda leaf, sharding: jax.device_put(np.asarray(leaf, np.float32), sharding)
    return jax.tree.map(put, weights, shardings(step.mesh, step.layout.master))


def state_with(step: TrainStep, weights: Any) -> TrainState:
    """The state before the first step, but with `weights`: no step taken, moments zero."""
    zeros = jax.tree.map(
        lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding),
        step.layout.abstract_state(step.mesh),
    )
    layout = step.layout
    carried = jax.jit(
        lambda: {name: kind.init() for name, kind in layout.carried.items()},
        out_shardings=jax.tree.map(lambda leaf: leaf.sharding, zeros.carried),
    )
    return zeros._replace(master=place(step, weights), carried=carried())
