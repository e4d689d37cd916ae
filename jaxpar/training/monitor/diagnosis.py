"""Diagnosis of a step whose loss or gradient is not finite: which weights and layers, and where it began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxpar.config.kinds import ALL
from jaxpar.memory.streaming import DEVICE
from jaxpar.mesh.build import to_numpy
from jaxpar.mesh.layer_order import LAYERS, LayerOrder
from jaxpar.mesh.parameters import Weights

MOST_NAMED = 4
"""The most weights that a sentence names one by one."""
AFTER_THE_LAYERS = ("final_norm/", "head/")

type Broken = dict[str, list[int] | None]
"""Names of weights to the layers, from 1, that are not finite; None for a weight that belongs to no layer."""


def broken_gradients(squares: Weights, order: LayerOrder) -> Broken:
    """The weights whose gradient is not finite, from its sums of squares (`StepMetrics.squares`).

    Collective over the processes of a job.
    """
    broken: Broken = {}
    for name, sums in _named(to_numpy(squares)).items():
        if sums.ndim == 0:
            if not np.isfinite(sums):
                broken[name] = None
            continue
        stack = order.stack_at(name.split("/"))
        if layers := stack.layers[~np.isfinite(sums[stack.row_of_layer])].tolist():
            broken[name] = [layer + 1 for layer in layers]
    return broken


def broken_weights(weights: Weights) -> list[str]:
    """Names of the weights that are not finite. Collective over the processes of a job."""
    look = jax.jit(lambda weight: jnp.isfinite(jax.device_put(weight, DEVICE)).all())
    finite = jax.tree.map(look, weights)
    return [name for name, value in _named(to_numpy(finite)).items() if not value]


def describe(broken: Broken, *, loss_is_finite: bool, weights: Sequence[str], tied: bool) -> str:
    """The words after "Step 12: " in a sentence about a step that is not finite."""
    if weights:
        return f"the loss is not finite, because the weights are not: {_some(weights)}"
    if not loss_is_finite:
        return "the loss itself is not finite, though all weights are: look at its batch, or for an overflow forward"
    return f"the loss is finite, but not the gradient of {_places(broken)}; {_beginning(broken, tied)}"


def _beginning(broken: Broken, tied: bool) -> str:
    """Layer where the backward pass, which starts at the loss, met it first."""
    after = [name for name in broken if name.startswith(AFTER_THE_LAYERS)]
    layers = {layer for numbers in broken.values() for layer in numbers or ()}
    if after:
        return "it began after the last layer"
    if layers:
        first = max(layers)
        names = [name for name, numbers in broken.items() if numbers and first in numbers]
        return f"the backward pass comes from the last layer, so it began in layer {first} ({_some(_short(names))})"
    return "it began at the head, which is the embedding" if tied else "it began in the embedding"


def _places(broken: Broken) -> str:
    layered = {name: numbers for name, numbers in broken.items() if numbers}
    places = [name for name in broken if name not in layered]
    if layered:
        layers = sorted({layer for numbers in layered.values() for layer in numbers})
        places.insert(0, f"{_some(_short(layered))} in {_ranges(layers)}")
    return " and of ".join(places)


def _ranges(layers: Sequence[int]) -> str:
    """`layer 3`, `layers 1 to 4`, `layers 1, 3 and 7`."""
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if layers[-1] - layers[0] + 1 == len(layers):
        return f"layers {layers[0]} to {layers[-1]}"
    return f"layers {', '.join(map(str, layers[:-1]))} and {layers[-1]}"


def _short(names: Mapping[str, object] | Sequence[str]) -> list[str]:
    """Names of layers' weights as `local/mlp/up`; as `mlp/up` where the model declares no kinds."""
    return [name.removeprefix(f"{LAYERS}/").removeprefix(f"{ALL}/") for name in names]


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _named(tree: PyTree[jax.Array]) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}
