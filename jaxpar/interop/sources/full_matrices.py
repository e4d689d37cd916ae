"""Weights of a model with its low-rank products (`model.low_rank`) multiplied into full matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jaxpar.config.kinds import layer_kinds
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.mapping.weight_names import weight_specs
from jaxpar.interop.sources.source import WeightSource
from jaxpar.layers.declaration.part import factor_names


def full_matrix_model(model: ModelConfig) -> ModelConfig:
    """The equivalent model with full matrices."""
    return replace(model, low_rank={})


def read_full_matrix(source: WeightSource, weight: str, layers: Sequence[int] | None, region: Region) -> np.ndarray:
    """Read a weight of `full_matrix_model`; a low-rank product is computed in float32 for the requested part."""
    rank = source.model.low_rank.get(weight.rpartition(".")[2])
    if layers is None or not len(layers) or rank is None:
        return source.read(weight, layers, region)
    inputs = weight_specs(full_matrix_model(source.model), layer_kinds(source.model)[layers[0]])[weight].inputs
    (a, b), between = factor_names(weight), slice(0, rank)
    firsts = source.read(a, layers, (*region[:inputs], between)).astype(np.float32)
    seconds = source.read(b, layers, (between, *region[inputs:])).astype(np.float32)
    return np.stack([np.tensordot(first, second, 1) for first, second in zip(firsts, seconds, strict=True)])
