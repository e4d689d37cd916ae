"""Weights of a run with LoRA (`lora`): those of its base model, merged with the low-rank factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from jaxpar.checkpoint.facts import BASE
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_models, layer_kinds
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.config.spelling import named
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.mapping.weight_names import LAYER_PREFIX, weight_specs
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.interop.sources.saved_weights import SavedWeights
from jaxpar.interop.sources.source import Origin, WeightSource
from jaxpar.layers.adapters import FACTORS, Adapters, targets_of
from jaxpar.layers.declared import declare_layer
from jaxpar.remote.cache import source_url


def base_facts(source: WeightSource) -> dict[str, object]:
    """Checkpoint metadata that names `source` as the base model of LoRA's factors."""
    return {BASE: {"path": source_url(source.location), "digest": source.digest}}


def check_base(source: WeightSource, facts: Mapping[str, Any], checkpoint: str) -> None:
    """Refuse a model other than the base model of saved factors.

    Args:
        source: the model.
        facts: metadata of the checkpoint with the factors.
        checkpoint: what messages call that checkpoint.

    Raises:
        UserError: the model's weights differ from those of the base model.
    """
    if BASE not in facts:
        raise UserError(f"{checkpoint} has LoRA factors, but no {BASE!r} in its facts: their base model is unknown")
    if source.digest != facts[BASE]["digest"]:
        raise UserError(
            f"{checkpoint} has LoRA factors for the weights of {facts[BASE]['path']}; {named(source.location)} has "
            "different weights; expected the same"
        )


@dataclass(frozen=True)
class AdaptedWeights:
    """A base model whose target matrices W are read as `W + alpha / rank * A B`, computed in float32."""

    factors: SavedWeights
    base: HFFolder | SavedWeights | AdaptedWeights

    def __post_init__(self) -> None:
        check_base(self.base, self.factors.facts, str(self.factors.location))

    @property
    def path(self) -> Path:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.factors.path

    @property
    def location(self) -> Path:
        return self.factors.location

    @property
    def digest(self) -> str:
        return self.factors.digest

    @property
    def step(self) -> int | None:
        """The step of the run after which the factors were saved."""
        return self.factors.step

    @property
    def run_folder(self) -> Path | None:
        """The folder of the run that trained the factors."""
        return self.factors.run_folder

    @property
    def config(self) -> Config:
        """The configuration of the run."""
        return self.factors.config

    @property
    def model(self) -> ModelConfig:
        return self.config.model

    @property
    def description(self) -> str:
        return f"{self.factors.description} with factors for {named(self.base.location)}"

    @property
    def lineage(self) -> tuple[str, ...]:
        return self.factors.lineage

    @property
    def origin(self) -> Origin | None:
        return self.base.origin

    def read(self, weight: str, layers: Sequence[int] | None, region: Region) -> np.ndarray:
        frozen = self.base.read(weight, layers, region).astype(np.float32)
        if layers is None or not len(layers):
            return frozen
        spec = weight_specs(self.model, layer_kinds(self.model)[layers[0]])[weight]
        if not self.is_target(weight):
            return frozen
        end = spec.stack + spec.inputs
        a, b = self.read_factors(weight, layers, (region[: spec.stack], region[spec.stack : end], region[end:]))
        pairs = [
            pair
            for factors in zip(a, b, strict=True)
            for pair in (zip(*factors, strict=True) if spec.stack else (factors,))
        ]
        products = np.stack([np.tensordot(*pair, 1) for pair in pairs])
        return frozen + np.float32(self.scale) * products.reshape(frozen.shape)

    @property
    def rank(self) -> int:
        """Rank of the factors."""
        assert self.config.lora.rank is not None, "a run with factors has a rank"
        return self.config.lora.rank

    @property
    def scale(self) -> float:
        """Factor of the product of the factors."""
        return self.config.lora.alpha / self.rank

    def is_target(self, weight: str) -> bool:
        """Whether a weight has factors."""
        return weight in _targets(self.model, self.config.lora)

    def read_factors(
        self, weight: str, layers: Sequence[int], regions: tuple[Region, Region, Region]
    ) -> tuple[np.ndarray, np.ndarray]:
        """A [layer, *stack, *inputs, rank] and B [layer, *stack, rank, *outputs] of a weight.

        `regions` are the regions of its stack dims (such as experts), of its inputs and of its outputs.
        """
        stack, inputs, outputs = regions
        rank = slice(0, self.rank)
        a, b = (f"{weight}_{name}" for name in FACTORS)
        return (
            self.factors.read(a, layers, (*stack, *inputs, rank)),
            self.factors.read(b, layers, (*stack, rank, *outputs)),
        )


@lru_cache(maxsize=16)
def _targets(model: ModelConfig, lora: Adapters) -> frozenset[str]:
    """The names of the matrices with factors, in layers of any kind."""
    parts = (part for layer in kind_models(model).values() for part in declare_layer(layer).parts)
    return frozenset(f"{LAYER_PREFIX}{part.name}.{name}" for part in parts for name in targets_of(part, lora))
