"""Experts that come with the batch, in place of those that routers would choose."""

from __future__ import annotations

from jaxpar.config.kinds import kind_models
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.config.schema.experts import ExpertsConfig
from jaxpar.layers.experts.routers import ROUTERS
from jaxpar.runtime.batch import Field

EXPERTS = "experts"
"""The array of a batch with the experts of each token in each layer of the model, [..., token, layer, choice], and
`NO_EXPERT` where there is none. Layers without experts have a place too, which nothing reads."""


def choices_of(experts: ExpertsConfig) -> int:
    """The columns of a layer's routing."""
    return experts.count if ROUTERS[experts.router].all_experts else experts.per_token


def replayed_shape(model: ModelConfig) -> tuple[int, int]:
    """(layers, choices) of `EXPERTS`: as many choices as the kind of layers with most has."""
    kinds = [own.experts for own in kind_models(model).values() if own.experts is not None]
    return model.layers, max(choices_of(experts) for experts in kinds)


def replay_fields(config: Config) -> tuple[Field, ...]:
    """The field of `EXPERTS`, where a run replays them."""
    return () if config.data.routing is None else (Field(EXPERTS, dims=replayed_shape(config.model)),)
