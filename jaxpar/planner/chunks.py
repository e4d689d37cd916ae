"""The chunks of a layout: the kinds of their layers, and the slots in which all of them run."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice

from jaxpar.config.kinds import ALIKE, layer_kinds
from jaxpar.config.schema import ModelConfig
from jaxpar.mesh.layer_order import common_sequence

type Kinds = tuple[str, ...]
"""Of layers or of slots, in order."""


@lru_cache(maxsize=10_000)
def chunk_kinds(model: ModelConfig, lengths: tuple[int, ...]) -> tuple[Kinds, ...]:
    """The kinds of the layers of each chunk, of so many layers each, in the order of the model."""
    kinds = iter(layer_kinds(model))
    return tuple(tuple(islice(kinds, length)) for length in lengths)


def chunk_slots(model: ModelConfig, lengths: tuple[int, ...]) -> Kinds:
    """The kind of each slot of a chunk: where chunks differ, some only pad the others' stacks."""
    return (ALIKE,) * max(lengths) if model.pattern is None else _slots(model, lengths)


@lru_cache(maxsize=10_000)
def _slots(model: ModelConfig, lengths: tuple[int, ...]) -> Kinds:
    return common_sequence(chunk_kinds(model, lengths))
