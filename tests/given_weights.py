"""Puts weights that a test has made into the layout of a step, without compiling anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxpar.config.schema import Pattern
from jaxpar.layout.state import TrainState
from jaxpar.layout.step_layout import shardings
from jaxpar.training.step.train_step import TrainStep
from tests.reference.options import kinds_of_layers


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
    scale = step.layout.config.precision.loss_scale if step.layout.config.precision.compute == "float16" else 1.0
    value = jax.device_put(np.float32(scale), zeros.loss_scale.value.sharding)
    return zeros._replace(master=place(step, weights), loss_scale=zeros.loss_scale._replace(value=value))


def as_decoder(weights: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Weights and options of the float64 reference as the decoder takes them: a stack for each kind of layer there is.

    The rows of `layers.<kind>` are the model's layers of that kind, in order.
    """
    if not options.get("pattern"):
        return weights, dict(options)
    of_layers = np.array(kinds_of_layers(options))

    def rows(tree: Any, kind: str) -> Any:
        return {
            name: rows(leaf, kind) if isinstance(leaf, dict) else leaf[of_layers == kind] for name, leaf in tree.items()
        }

    stacks = {kind: rows(weights["layers"], kind) for kind in dict.fromkeys(of_layers.tolist())}
    pattern = Pattern(**{part: tuple(kinds) for part, kinds in options["pattern"].items()})
    return weights | {"layers": stacks}, {**options, "pattern": pattern}
