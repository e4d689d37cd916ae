"""The weights of a model with its low-rank products (`model.low_rank`) multiplied: every matrix is whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jaxpar.config.kinds import layer_kinds
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.mapping.weight_names import own_specs
from jaxpar.interop.sources.source import WeightSource
from jaxpar.layers.declaration.part import factor_names


def whole_model(model: ModelConfig) -> ModelConfig:
    """The model of the same function whose matrices are whole."""
    return replace(model, low_rank={})


def read_whole(source: WeightSource, weight: str, layers: Sequence[int] | None, region: Region) -> np.ndarray:
    """`source.read` of a weight of `whole_model`; a product of two is computed in float32 for the part that is read."""
    rank = source.model.low_rank.get(weight.rpartition(".")[2])
    if layers is None or not len(layers) or rank is None:
        return source.read(weight, layers, region)
    inputs = own_specs(whole_model(source.model), layer_kinds(source.model)[layers[0]])[weight].inputs
    (a, b), between = factor_names(weight), slice(0, rank)
    firsts = source.read(a, layers, (*region[:inputs], between)).astype(np.float32)
    seconds = source.read(b, layers, (between, *region[inputs:])).astype(np.float32)
    return np.stack([np.tensordot(first, second, 1) for first, second in zip(firsts, seconds, strict=True)])
