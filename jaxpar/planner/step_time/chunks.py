"""The chunks of a layout: the kinds of their layers, the slots in which they run, and the padding of short ones."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice

from jaxpar.config.kinds import layer_kinds
from jaxpar.config.schema import ModelConfig
from jaxpar.cost.layout import Layout
from jaxpar.layout.choices.pipeline import even_chunks
from jaxpar.mesh.layer_order import common_sequence

type Kinds = tuple[str, ...]
"""Kinds of layers or of slots, in order."""


@lru_cache(maxsize=10_000)
def chunk_kinds(model: ModelConfig, lengths: tuple[int, ...]) -> tuple[Kinds, ...]:
    """The kinds of the layers of each chunk, of so many layers each, in the order of the model."""
    kinds = iter(layer_kinds(model))
    return tuple(tuple(islice(kinds, length)) for length in lengths)


@lru_cache(maxsize=10_000)
def chunk_slots(model: ModelConfig, lengths: tuple[int, ...]) -> Kinds:
    """The kind of each slot of a chunk; where chunks differ, some slots are padding."""
    return common_sequence(chunk_kinds(model, lengths))


def chunk_lengths(model: ModelConfig, layout: Layout) -> tuple[int, ...]:
    """Layers of each chunk of a layout."""
    chunks = layout.pipe * layout.virtual_stages
    return even_chunks(model.layers, chunks) if layout.stage_layers is None else layout.stage_layers


def kinds_of_slots(model: ModelConfig, layout: Layout) -> Kinds:
    """The kind of each slot of a chunk of a layout; nothing where all layers are alike."""
    return () if model.pattern is None else chunk_slots(model, chunk_lengths(model, layout))


GATHERED = "ZeRO-3 gathers the weights of every row"


def why_padded(layout: Layout) -> str | None:
    """The reason why rows that only pad a chunk take time; None where they are skipped.

    One program runs on all ranks: padding rows run if a layer permutes or offloads activations, and their weights are
    gathered under ZeRO-3 (`model.layer_loop`).
    """
    if layout.context > 1 and layout.context_strategy in ("ring", "usp"):
        return f"layers permute ({layout.context_strategy})"
    if layout.offload_fraction > 0:
        return "layers keep something on the host"
    return GATHERED if layout.zero == 3 else None
