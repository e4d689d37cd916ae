"""The names of a model's weights, whatever its kinds of layers: those of a layer have no number and no kind in them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from jax.tree_util import KeyPath

from jaxpar.config.kinds import ALL, kind_model
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.layers.declaration.weights import specs_of
from jaxpar.mesh.layer_order import LAYERS, without_kind
from jaxpar.mesh.parameters import Nested, ParamSpec
from jaxpar.model.decoder import Decoder, layer_of_kind

LAYER_PREFIX = f"{LAYERS}."
"""Prefix of the names of layers' weights, such as `layers.mlp.up`."""


def weight_specs(model: ModelConfig, kind: str) -> dict[str, ParamSpec]:
    """The spec of each weight by name: those of one layer of a kind, and those outside layers.

    The vocabulary is not padded.
    """
    of_kind = replace(kind_model(model, kind), vocab_multiple=1)
    return dict(_weight_specs(replace(model, vocab_multiple=1, kinds={}, pattern=None), of_kind))


@lru_cache(maxsize=64)
def _weight_specs(model: ModelConfig, of_kind: ModelConfig) -> tuple[tuple[str, ParamSpec], ...]:
    embed_and_head, layer = (
        specs_of(Decoder(Config(model=model))),
        specs_of(layer_of_kind(Config(model=of_kind), ALL)),
    )
    return tuple({**_flat(embed_and_head), **_flat({LAYERS: layer})}.items())


def _flat(tree: Nested[ParamSpec], prefix: str = "") -> dict[str, ParamSpec]:
    specs: dict[str, ParamSpec] = {}
    for name, value in tree.items():
        specs |= {prefix + name: value} if isinstance(value, ParamSpec) else _flat(value, f"{prefix}{name}.")
    return specs


def weight_name(path: KeyPath) -> str:
    """The name of the leaf at JAX's `path` of a tree of weights, without the kind of its layers."""
    return ".".join(str(getattr(key, "key", key)) for key in without_kind(path))
