"""Weights that can be read by parts, wherever they are: what every MODEL is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from jax.tree_util import KeyPath

from jaxpar.config.errors import UserError
from jaxpar.config.kinds import layer_kinds
from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import named
from jaxpar.interop.config_json import Difference, differences
from jaxpar.interop.mapping.family import Family
from jaxpar.interop.mapping.form import ReadPart, Region
from jaxpar.interop.mapping.weight_names import weight_name, weight_specs
from jaxpar.mesh.layer_order import LAYERS, PADDING, LayerOrder
from jaxpar.mesh.parameters import ParamSpec

SHAPES = (
    "layers", "vocab", "embed", "heads", "kv_heads", "head_dim", "mlp", "norm", "norm_placement", "position",
    "max_positions", "qk_norm", "attention_bias", "attention_sinks", "attention_gate", "mlp_bias", "activation",
    "experts", "low_rank", "mixer", "latent_attention", "linear_attention", "tied", "input",
    "head_transform", "head_bias", "token_types", "keys_as_values", "keys_of", "layer_scale", "per_layer_embeddings",
    "altup", "laurel_rank",
)  # fmt: skip
"""Keys of the model section that decide which weights there are, and their shapes."""
MEANING = ("norm",)
"""Keys whose values give weights of the same shapes another meaning."""


@dataclass(frozen=True)
class Origin:
    """The Hugging Face folder from which weights came, whose files an export copies."""

    folder: Path
    """Folder with `config.json` and the files of a tokenizer."""
    family: Family
    dtypes: dict[str, str]
    """The dtype of each tensor there."""


class ReadWeights(Protocol):
    """Weights that are read by name."""

    @property
    def model(self) -> ModelConfig:
        """Configuration of the model."""
        ...

    def read(self, weight: str, layers: Sequence[int] | None, region: Region) -> np.ndarray:
        """Part `region` of a weight, its vocabulary not padded; of a layer's weight, [layer, ...] of those layers."""
        ...


class WeightSource(ReadWeights, Protocol):
    """The weights of a MODEL."""

    @property
    def path(self) -> Path:
        """The path that was requested."""
        ...

    @property
    def location(self) -> Path:
        """The folder of the weights: for a run, that of the checkpoint."""
        ...

    @property
    def digest(self) -> str:
        """Differs where another training changed the weights; of Hugging Face's files it samples rows."""
        ...

    @property
    def description(self) -> str:
        """Description of the source, for messages."""
        ...

    @property
    def lineage(self) -> tuple[str, ...]:
        """This model and its ancestors, the nearest first, each with its step if a run saved it."""
        ...

    @property
    def origin(self) -> Origin | None:
        """The origin of the weights; None if it is unknown."""
        ...


def read_part(source: ReadWeights, path: KeyPath, spec: ParamSpec, order: LayerOrder) -> ReadPart:
    """A function that reads parts of a leaf of a tree of weights, in float32.

    Rows that pad the vocabulary or a stack are zero.

    Args:
        source: its weights have the shapes of the tree's.
        path: JAX's path of the leaf.
        spec: of the leaf, stacked.
        order: of the layers in the stacks.
    """
    name = weight_name(path)
    numbers = order.stack_at(path).numbers.ravel() if spec.axes[0] == LAYERS else None

    def read(region: Region) -> np.ndarray:
        bounds = [part.indices(size)[:2] for part, size in zip(region, spec.shape, strict=True)]
        values = np.zeros([last - first for first, last in bounds], np.float32)
        real = [min(last, size) for (_, last), size in zip(bounds, spec.unpadded_shape, strict=True)]
        if any(last <= first for (first, _), last in zip(bounds, real, strict=True)):
            return values
        stored = tuple(slice(first, last) for (first, _), last in zip(bounds, real, strict=True))
        filled = tuple(slice(0, last - first) for (first, _), last in zip(bounds, real, strict=True))
        if numbers is None:
            values[filled] = source.read(name, None, stored)
            return values
        rows = numbers[stored[0]]
        valid = rows != PADDING
        if valid.any():
            values[(valid, *filled[1:])] = source.read(name, [int(row) for row in rows[valid]], stored[1:])
        return values

    return read


def check_fits(source: WeightSource, model: ModelConfig, key: str) -> list[Difference]:
    """Check that the weights of a source are those of a model; returns what else the two models differ in.

    Args:
        source: the weights.
        model: for which they are to be used.
        key: what names the source, for messages.

    Raises:
        UserError: a weight has another shape or meaning, or only one of the two has it.
    """
    lines = differences(source.model, model)
    deciding = MEANING if _shapes(source.model) == _shapes(model) else SHAPES
    if wrong := [one for one in lines if one.key in deciding]:
        raise UserError(
            f"{key}: {named(source.path)} has other weights than this model, in {'; '.join(map(str, wrong))}; python "
            f"-m jaxpar.models {named(source.path)} prints the model section that fits it"
        )
    return lines


def _shapes(model: ModelConfig) -> list[dict[str, tuple[int, ...]]]:
    """The shape of each weight of each layer, and of those outside layers."""
    of_kind = {
        kind: {name: spec.shape for name, spec in weight_specs(model, kind).items()} for kind in set(layer_kinds(model))
    }
    return [of_kind[kind] for kind in layer_kinds(model)]
