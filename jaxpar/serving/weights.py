"""The weights of a server, which it replaces while it draws answers: those of the model, and of adapters beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxpar.config import Config
from jaxpar.generation.generator import Generator
from jaxpar.generation.placed_model import place_model, read_weights
from jaxpar.interop.adapters.adapter import Adapter, AdapterSource, check_room
from jaxpar.interop.adapters.open_adapter import adaptable_of, open_adapter
from jaxpar.interop.sources.open_source import Model, replaced_weights
from jaxpar.interop.sources.source import ReadWeights
from jaxpar.layers.declaration.adaptation import AdapterStack


@dataclass
class ServedWeights:
    """A generator, and what is read into it."""

    generator: Generator
    base: Model
    """Whose tensors other weights have."""
    weights: ReadWeights
    """The weights of the model, without adapters."""
    adapters: list[Adapter | None]
    """Adapters by their indices; None is a free index."""

    def replace(self, folder: Path) -> None:
        """Go on with the weights of the model in a folder. Raises `UserError`."""
        weights = replaced_weights(self.base, folder)
        source = weights if not self.adapters else self._adapted(weights, self.adapters)
        self.generator.update(read_weights(self.generator.config, self.generator.mesh, source))
        self.weights = weights

    def read_adapter(self, folder: Path) -> Adapter:
        """An adapter that there is room for. Raises `UserError`."""
        adapter = open_adapter(folder, self.base, "lora_path")
        assert isinstance(self.generator.config.lora, AdapterStack), "there is room for adapters"
        check_room(adapter, self.generator.config.lora)
        return adapter

    def put_adapter(self, index: int, adapter: Adapter) -> None:
        """Go on with another adapter at an index."""
        adapters = [*self.adapters[:index], adapter, *self.adapters[index + 1 :]]
        self.generator.put_adapters(self._adapted(self.weights, adapters))
        self.adapters = adapters

    def _adapted(self, weights: ReadWeights, adapters: Sequence[Adapter | None]) -> AdapterSource:
        stack = self.generator.config.lora
        assert isinstance(stack, AdapterStack), "there is room for adapters"
        return AdapterSource(weights, adapters, stack)


def open_weights(
    config: Config, base: Model, folders: Mapping[str, str], prefill: int = 0, room: tuple[int, int] | None = None
) -> ServedWeights:
    """A generator of a model, which has the only copy of its weights.

    Args:
        config: see `place_model`.
        base: the model.
        folders: of adapters beside it, by their names.
        prefill: see `place_model`.
        room: of adapters that may come later: how many there may be, with those of `folders`, and their rank.

    Raises:
        UserError: an adapter is not of this model, or the model takes none.
    """
    adapters: list[Adapter | None] = [open_adapter(one, base, f"--adapter {name}") for name, one in folders.items()]
    stack = None
    if room is not None:
        most, rank = room
        # One more than names: an answer goes on with an adapter that was replaced since it began.
        adapters += [None] * (max(most, len(adapters)) + 1 - len(adapters))
        rank = max(rank, *(one.rank for one in adapters if one is not None), 1)
        stack = AdapterStack(rank, float(rank), adaptable_of(base, "--adapters"), size=len(adapters))
    source = AdapterSource(base, adapters, stack) if adapters else base
    placed = place_model(config, source, prefill)
    generator = Generator(placed.config, placed.mesh, placed.weights, prefill=placed.prefill, mixing=placed.mixing)
    return ServedWeights(generator, base, base, adapters)
