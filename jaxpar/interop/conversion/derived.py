"""A model whose weights are computed from those of another one while they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jaxpar.config.schema import ModelConfig
from jaxpar.interop.sources.open_source import Model
from jaxpar.layers.counting import parameter_count


@dataclass(frozen=True)
class DerivedModel:
    """What such a model has in common with its source: it is known by the same folder and digest."""

    source: Model
    """Where the weights come from."""
    model: ModelConfig

    @property
    def path(self) -> Path:
        return self.source.path

    @property
    def place(self) -> Path:
        return self.source.place

    @property
    def digest(self) -> str:
        return self.source.digest

    @property
    def lineage(self) -> tuple[str, ...]:
        return self.source.lineage

    @property
    def weights(self) -> int:
        """Number of weights."""
        return parameter_count(self.model, padded=False)
