"""A model whose weights are computed from those of another one while they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxpar.config.schema import ModelConfig
from jaxpar.interop.sources.open_source import Model
from jaxpar.layers.counting import parameter_count
from jaxpar.mesh.parameters import ParamSpec, initial_weight

_draw = jax.jit(initial_weight, static_argnums=(0, 1, 2))


@dataclass(frozen=True)
class DerivedModel:
    """A model derived from another one, identified by its source's folder and digest."""

    source: Model
    """The model that supplies the weights."""
    model: ModelConfig

    @property
    def path(self) -> Path:
        return self.source.path

    @property
    def location(self) -> Path:
        return self.source.location

    @property
    def digest(self) -> str:
        return self.source.digest

    @property
    def lineage(self) -> tuple[str, ...]:
        return self.source.lineage

    @property
    def weights(self) -> int:
        """The number of weights that were derived."""
        return parameter_count(self.model, padded=False)


def initial_of_layer(weight: str, spec: ParamSpec, layer: int, seed: int) -> np.ndarray:
    """The initial value of a layer's weight in a new run with a seed."""
    path = tuple(jax.tree_util.DictKey(key) for key in weight.split("."))
    numbers = jnp.array([layer], jnp.int32)
    return np.asarray(_draw(jax.tree_util.keystr(path), spec.stacked(1), seed, numbers)[0])
