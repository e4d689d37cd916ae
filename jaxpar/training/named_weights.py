"""The weights of a run by name, as NumPy, whatever the layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.build import to_numpy
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.parameters import ParamSpec, Weights


class NamedWeights(Mapping[str, np.ndarray]):
    """Weights by name, as `layers.all.mlp.up`. A weight is copied from the devices when it is asked for, in float32.

    Layers are stacked in the order of the model, those of each kind apart, without padding; the vocabulary is not
    padded either. On several processes all of them must ask for the same weight.

    Args:
        weights: of the whole model, as `Run.evaluated_weights` has them.
        layout: of the run.
    """

    def __init__(self, weights: Weights, layout: StepLayout):
        paths = jax.tree_util.tree_leaves_with_path(layout.specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
        self._specs = {".".join(str(key.key) for key in path): spec for path, spec in paths}
        self._paths = dict(zip(self._specs, (path for path, _ in paths), strict=True))
        self._weights, self._layout = weights, layout

    def __getitem__(self, name: str) -> np.ndarray:
        full = np.asarray(to_numpy(self._leaf(name)), np.float32)
        spec = self._specs[name]
        if spec.axes[0] == LAYERS:
            full = full[self._layout.order.stack_at(self._paths[name]).row_of_layer]
        return full[tuple(slice(size) for size in spec.unpadded_shape)]

    def layer(self, name: str, layer: int) -> np.ndarray:
        """A stacked weight of one layer, by its index among those of its kind; no more is copied."""
        spec = self._specs[name]
        assert spec.axes[0] == LAYERS, "the layers of it are stacked"
        row = self._layout.order.stack_at(self._paths[name]).row_of_layer[layer]
        full = np.asarray(to_numpy(_row(self._leaf(name), row)), np.float32)
        return full[tuple(slice(size) for size in spec.unpadded_shape[1:])]

    def _leaf(self, name: str) -> jax.Array:
        leaf: Any = self._weights
        for key in self._paths[name]:
            leaf = leaf[key.key]
        return leaf

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def __repr__(self) -> str:
        return f"NamedWeights({', '.join(self._specs)})"


@jax.jit
def _row(stack: jax.Array, row: int) -> jax.Array:
    """A row of a stack. As a sum: a slice would be gathered in full first where devices have other rows."""
    rows = jnp.arange(len(stack)).reshape(-1, *[1] * (stack.ndim - 1))
    return jnp.where(rows == row, stack, 0).sum(0, dtype=stack.dtype)
