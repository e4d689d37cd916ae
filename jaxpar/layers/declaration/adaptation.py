"""The trained weights of a model: all of them, or those that a feature adds to frozen ones."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.config.parts import feature
from jaxpar.config.schema import Config, LoraConfig
from jaxpar.layers.declaration.part import Part
from jaxpar.mesh.parameters import Nested, ParamSpec


class Adaptation:
    """All weights are trained."""

    frozen_by: str | None = None
    """The key and value by which the weights of the model are frozen; None if they are trained."""

    def part(self, part: Part) -> Part:
        """`part` with the weights that are added to it."""
        return part

    def specs(self, specs: Nested[ParamSpec]) -> Nested[ParamSpec]:
        """`specs` with those frozen that are not trained."""
        return specs


ALL_TRAINED = Adaptation()

Adapters = LoraConfig
"""Weights that are added to the matrices of a model."""


@dataclass(frozen=True)
class AdapterStack(LoraConfig):
    """Factors of several adapters side by side, in generation: padded to one rank, and multiplied by their weights."""

    size: int = 1
    """Adapters of the stack."""


OFF = Adapters()
"""No adapters: all weights are trained."""


def adaptation(adapters: Adapters) -> Adaptation:
    """The adaptation by some adapters."""
    return ALL_TRAINED if adapters.rank is None else feature("low_rank_factors")(adapters)


def adaptation_of(config: Config) -> Adaptation:
    """The adaptation of a configuration."""
    return adaptation(config.lora)
