"""A model whose weights are computed from those of another one while they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jaxpar.config.schema import ModelConfig
from jaxpar.interop.sources.open_source import Model
from jaxpar.layers.counting import parameter_count


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
        """Number of weights."""
        return parameter_count(self.model, padded=False)
