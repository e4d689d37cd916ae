"""A dense model as a start of SpikingBrain's layers: gated linear attention and windows in turn (arXiv:2509.05276)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jaxpar.checkpoint.facts import CAME_FROM
from jaxpar.config.counting import kv_heads
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import layer_kinds
from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.config.schema.model import Pattern
from jaxpar.config.spelling import named
from jaxpar.interop.conversion.converted import write_weights
from jaxpar.interop.conversion.derived import DerivedModel, initial_of_layer
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.mapping.weight_names import weight_specs
from jaxpar.interop.sources.full_matrices import full_matrix_model, read_full_matrix
from jaxpar.interop.sources.open_source import Model
from jaxpar.interop.sources.source import Origin

STATE, LOCAL = "state", "local"
"""The kinds of even layers, and of odd ones."""
_MISSING = {
    "mixer": "attention", "latent_attention": None, "qk_norm": False, "qkv_clip": None, "attention_sinks": False,
    "attention_gate": False, "attention_softcap": None, "attention_scale": None,
}  # fmt: skip
"""Keys of attention that the linear layers do not have, with what they stand for."""


@dataclass(frozen=True)
class Linearized(DerivedModel):
    """A model of attention, read as one whose even layers have a state: their projections are those of attention, and
    decays and norms are drawn as a new run's. Odd layers keep their weights, and see a window."""

    @property
    def description(self) -> str:
        return f"linear layers of {self.source.description}"

    @property
    def origin(self) -> Origin | None:
        """None: the family of the source has no such layers."""
        return None

    def write(self, folder: Path, report: Callable[[str], None]) -> None:
        """Write a checkpoint into a new folder."""
        config = replace(Config(), model=self.model)
        write_weights(self, config, {CAME_FROM: list(self.lineage)}, folder, report)

    def read(self, weight: str, layers: Sequence[int] | None, region: Region) -> np.ndarray:
        theirs = weight.replace("mixer", "attention")
        dense = full_matrix_model(self.source.model)
        if layers is None or not len(layers) or theirs in weight_specs(dense, layer_kinds(dense)[layers[0]]):
            return read_full_matrix(self.source, theirs, layers, region)
        spec = weight_specs(self.model, layer_kinds(self.model)[layers[0]])[weight]
        return np.stack([initial_of_layer(weight, spec, layer, Config().run.seed)[region] for layer in layers])


def plan_linearization(source: Model, window: int) -> Linearized:
    """The layers of SpikingBrain with the weights of a dense model, before anything is read or written.

    Args:
        source: a model whose layers all have the same attention.
        window: of odd layers.

    Raises:
        UserError: the model has kinds of layers or one layer, or attention that linear layers do not have.
    """
    model = full_matrix_model(source.model)
    if model.pattern is not None or model.layers < 2:
        has = "kinds of layers" if model.pattern else "one layer"
        raise UserError(f"MODEL: {named(source.path)} has {has}; expected two layers at least, all alike")
    for key, usual in _MISSING.items():
        if (value := getattr(model, key)) != usual:
            raise UserError(
                f"MODEL: {named(source.path)} has model.{key} ({value}), which linear layers do not have; expected "
                "attention without"
            )
    if model.attention_bias is True:
        raise UserError(
            f"MODEL: the output of attention in {named(source.path)} has a bias, which that of linear layers has not; "
            "expected model.attention_bias false or qkv"
        )
    return Linearized(source, _with_kinds(model, window))


def _with_kinds(model: ModelConfig, window: int) -> ModelConfig:
    suffix = (STATE,) if model.layers % 2 else ()
    return replace(
        model, window=None, linear_attention=LinearAttentionConfig(key_heads=kv_heads(model)),
        kinds={STATE: {"mixer": "relu_gla"}, LOCAL: {"window": window}},
        pattern=Pattern((STATE, LOCAL), suffix=suffix),
    )  # fmt: skip
